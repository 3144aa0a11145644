"""Kernel on a node, as a Jupyter server sees it. The server adopts the kernel, also by a new node agent."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import msgspec

from .channel.messages import (
    UNREACHABLE,
    AwaitMove,
    Ended,
    Forget,
    Move,
    NodeError,
    Output,
    Request,
    SetMove,
    Signal,
    Wait,
)
from .node_connection import NodeConnection

_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # before the tries to reach the node again; the last one repeats
_DISCARD_SECONDS = 60.0
_STABLE_SECONDS = 5.0  # for which a node must have been reached so that its next loss is a new one
_LOGGED_LINES = 20  # of a kernel that has ended unexpectedly
_REFUSAL_SECONDS = 1.0  # before the reason of a refused move is sent again


class RemoteKernel:
    """Running kernel, whose methods any thread may call.

    `connect` returns a connection to the node. A kernel whose node has not answered for `node_timeout` seconds counts
    as ended; 0: never. `start` is the id of its start, or "" for a kernel that the server has found.
    """

    def __init__(
        self, kernel: str, connect: Callable[[], NodeConnection], node_timeout: float = 0.0, start: str = ""
    ) -> None:
        self.kernel = kernel
        self.start = start
        self.ended: Future[Ended] = Future()
        self._connect = connect
        self._node_timeout = node_timeout
        self.on_move: Callable[[Move], None] | None = None  # called when the kernel asks for a move
        self.is_discarded = False
        self._is_adopting = False
        self._is_abandoned = False
        self._tries = 0
        self._lost_at = 0.0  # when the node was found not to answer, if `_tries` is not 0

    def request(self, message: Request) -> Future[Any]:
        """Send a request to the node. The future gets the result or a NodeError."""
        try:
            return self._connect().request(message)
        except NodeError as error:
            return _failed(error)

    def adopt(self) -> None:
        """Wait for the end of the kernel in the background, and reach the node again whenever its agent has ended."""
        if not self._is_adopting:
            self._is_adopting = True
            self._adopt()

    def await_move(self) -> None:
        """Wait in the background until the kernel asks for its next move."""
        self.request(AwaitMove(kernel=self.kernel)).add_done_callback(self._on_move)

    def refuse_move(self, move: str, reason: str, refused: Callable[[Move], object] = lambda _: None) -> None:
        """Send the reason why a move does not take place, or all moves for the id "", and wait for the next move.

        `refused` is called for each of these moves, in a thread of a connection.
        The node agent may be unable to write the answer, so the server sends the reason again a little later.
        An answer that does not arrive is no loss, because the next node agent finds the request of the kernel again.
        """

        def on_answer(answer: Future[Any]) -> None:
            error = answer.exception()
            if error is None:
                if self.on_move:
                    self.await_move()
                for one in answer.result():
                    refused(msgspec.convert(one, Move))
            elif isinstance(error, NodeError) and error.reason not in UNREACHABLE and not self.ended.done():
                _call_later(_REFUSAL_SECONDS, lambda: self.refuse_move(move, reason, refused))

        refusal = SetMove(kernel=self.kernel, move=move, state="refused", reason=reason)
        self.request(refusal).add_done_callback(on_answer)

    def _adopt(self) -> None:
        began = time.monotonic()
        connection: NodeConnection | None = None
        try:
            connection = self._connect()
            answer = connection.request(Wait(kernel=self.kernel, start=self.start))
        except NodeError as error:
            answer = _failed(error)
        answer.add_done_callback(lambda done: self._on_answer(done, connection, began))
        if self.is_discarded:
            self._kill()
        if self.on_move:
            self.await_move()

    def _on_move(self, answer: Future[Any]) -> None:
        if self.on_move and answer.exception() is None and answer.result():
            self.on_move(msgspec.convert(answer.result(), Move))

    @property
    def part_bytes(self) -> int:
        """Size of data that a request may have without blocking, in a turn of `part_turns`. Raise NodeError."""
        return self._connect().part_bytes

    @property
    def part_turns(self) -> threading.Semaphore:
        """Turns of requests with data to the node, each until the answer. Raise NodeError."""
        return self._connect().part_turns

    def end_agent(self) -> None:
        """End a node agent that does not answer, unless it may still start. Block until the agent's end."""
        with suppress(NodeError):
            connection = self._connect()
            if not connection.is_starting:
                connection.end()

    def abandon(self, reason: str) -> None:
        """Count the kernel as ended, and reach the node no more. The kernel may go on until its orphan timeout."""
        self._is_abandoned = True
        self._end(Ended(status=None, reason=reason))

    def discard(self, start: Future[Any] | None = None) -> None:
        """End a kernel that may run although its start has failed, and remove its files, if the node answers soon.

        A later kernel with the same id has another `start`, and goes on.
        """
        error = start.exception() if start else None
        if isinstance(error, NodeError) and error.reason != "agent_ended":
            return  # the node has not started the kernel
        self._node_timeout = self._node_timeout or _DISCARD_SECONDS
        self.is_discarded = True
        if self._is_adopting:
            self._kill()
        self.adopt()
        self.ended.add_done_callback(lambda _: self.request(Forget(kernel=self.kernel, start=self.start)))

    def log_end(self, log: logging.Logger, node: str) -> None:
        """Log the exit status of a kernel that has ended on this node, and the last lines that it has printed."""
        status = self.ended.result().status

        def on_answer(answer: Future[Any]) -> None:
            lines = [] if answer.exception() else answer.result()["text"].strip().splitlines()[-_LOGGED_LINES:]
            log.error("kernel %s on %s ended with status %s: %s", self.kernel, node, status, "\n".join(lines))

        self.request(Output(kernel=self.kernel)).add_done_callback(on_answer)

    def _kill(self) -> None:
        self.request(Signal(kernel=self.kernel, number=signal.SIGKILL, start=self.start))

    def _on_answer(self, answer: Future[Any], connection: NodeConnection | None, began: float) -> None:
        error, now = answer.exception(), time.monotonic()
        if error is None:
            self._end(msgspec.convert(answer.result(), Ended))
            return
        if isinstance(error, NodeError) and error.reason not in UNREACHABLE:
            self._end(Ended(status=None, reason=error.reason))
            return
        if connection and connection.is_greeted and now > began + _STABLE_SECONDS:
            self._tries = 0
        self._lost_at = self._lost_at if self._tries else now
        if self._node_timeout and now >= self._lost_at + self._node_timeout:
            self.abandon(str(error))
        elif not self._is_abandoned:
            delay = _RETRY_SECONDS[min(self._tries, len(_RETRY_SECONDS) - 1)]
            self._tries += 1
            _call_later(delay, self._adopt)

    def _end(self, ended: Ended) -> None:
        with suppress(InvalidStateError):  # it has ended already
            self.ended.set_result(ended)


def _call_later(seconds: float, function: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.start()


def _failed(error: NodeError) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future
