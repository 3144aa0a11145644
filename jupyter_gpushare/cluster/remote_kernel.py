"""Kernel on a node, as a Jupyter server sees it. The server adopts the kernel, also by a new node agent."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from .messages import Ended, Forget, NodeError, Request, Signal, Wait
from .node_connection import NodeConnection

_RETRY_SECONDS = (0.1, 0.5, 1.0, 2.0, 5.0)  # before the tries to reach the node again; the last one repeats
_UNREACHABLE = ("agent_ended", "engine_failed")


class RemoteKernel:
    """Running kernel, whose methods any thread may call. `connect` returns a connection to the node."""

    def __init__(self, kernel: str, connect: Callable[[], NodeConnection]) -> None:
        self.kernel = kernel
        self.ended: Future[Ended] = Future()
        self._connect = connect
        self._tries = 0
        self._is_abandoned = False

    def request(self, message: Request) -> Future[Any]:
        """Send a request to the node. The future gets the result or a NodeError."""
        try:
            return self._connect().request(message)
        except NodeError as error:
            failed: Future[Any] = Future()
            failed.set_exception(error)
            return failed

    def adopt(self) -> None:
        """Wait for the end of the kernel in the background, and reach the node again whenever its agent has ended."""
        self.request(Wait(kernel=self.kernel)).add_done_callback(self._on_answer)

    def abandon(self) -> None:
        """Reach the node no more. The kernel goes on until its orphan timeout."""
        self._is_abandoned = True

    def discard(self, started: Future[Any]) -> None:
        """End a kernel that has started too late, and remove its files."""
        if started.exception() is not None:
            return
        self.adopt()
        self.request(Signal(kernel=self.kernel, number=signal.SIGKILL))
        self.ended.add_done_callback(lambda _: self.request(Forget(kernel=self.kernel)))

    def _on_answer(self, answer: Future[Any]) -> None:
        error = answer.exception()
        if error is None:
            self._end(msgspec.convert(answer.result(), Ended))
        elif isinstance(error, NodeError) and error.reason not in _UNREACHABLE:
            self._end(Ended(status=None, reason=error.reason))
        elif not self._is_abandoned:
            delay = _RETRY_SECONDS[min(self._tries, len(_RETRY_SECONDS) - 1)]
            self._tries += 1
            timer = threading.Timer(delay, self.adopt)
            timer.daemon = True
            timer.start()

    def _end(self, ended: Ended) -> None:
        with suppress(Exception):  # a second answer after a new connection
            self.ended.set_result(ended)
