"""Connection of a Jupyter server to the node agent of one node, which an engine's command runs.

The answers come in a thread of the connection, because a blocking kernel manager runs each call of a provisioner in
another event loop.
"""

from __future__ import annotations

import collections
import fcntl
import itertools
import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import msgspec

from .channel.messages import Answer, NodeError, Request
from .channel.sealed_channel import ChannelError, SealedChannel, VersionError

_MAX_FOREIGN_LINES = 1000  # that a shell or an engine prints before the greeting
_ERROR_LINES = 3
_END_SECONDS = 2.0
_WITHDRAWAL_SECONDS = 1.0  # in which the engine's command may withdraw its job
_WITHDRAWAL_POLL_SECONDS = 0.02
_PING_SECONDS = 5.0
_GREETING_SECONDS = 120.0  # for the engine to start the agent; a job may wait for its node
_START_SECONDS = 30.0  # after which a request without an answer ends an agent that has not started
_NODE_SILENCE_SECONDS = 15.0  # after which the node counts as unreachable
_MAX_PARTS = 2  # of data without an answer, so that the writes of other requests do not block
_PIPE_BYTES = 1 << 20  # the most that Linux gives a user by default
_decoder = msgspec.json.Decoder(Answer)
_encoder = msgspec.json.Encoder()


class NodeConnection:
    """Running node agent. The first failure ends the connection for good."""

    def __init__(self, node: str, command: Sequence[str]) -> None:
        """Start the agent. Raise NodeError if the engine's command cannot be executed."""
        self.node = node
        self.failure: NodeError | None = None
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._pending: dict[int, Future[Any]] = {}
        self._unsent: list[Request] | None = []  # until the greeting of the agent, then None
        self._channel = SealedChannel(is_server=True)
        self._errors: collections.deque[str] = collections.deque(maxlen=_ERROR_LINES)
        try:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # so that the stop key of a terminal does not end the agent
            )
        except OSError as error:
            raise NodeError(f"the engine cannot run {command[0]}: {error.strerror}", "engine_failed") from None
        assert self.process.stdin is not None
        with suppress(OSError):  # beyond the user's share of memory for pipes
            fcntl.fcntl(self.process.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        # Size of data in a request, of which an empty pipe has room for `_MAX_PARTS` after two encodings as base64.
        self.part_bytes = fcntl.fcntl(self.process.stdin, fcntl.F_GETPIPE_SZ) // 4
        self.part_turns = threading.Semaphore(_MAX_PARTS)
        self._last_answer_at = time.monotonic()
        self._has_ended = threading.Event()
        self._error_reader = self._start_thread(self._read_errors)
        self._answer_reader = self._start_thread(self._read_answers)
        self._start_thread(self._ping)

    @property
    def is_greeted(self) -> bool:
        """Return whether the agent has answered at all."""
        return self._unsent is None

    @property
    def is_starting(self) -> bool:
        """Return whether the engine may still need time to start the agent."""
        return not self.is_greeted and time.monotonic() < self._last_answer_at + _START_SECONDS

    @property
    def errors(self) -> str:
        """Return the last lines that the engine or the agent has printed, besides the messages, or ""."""
        return "; ".join(self._errors)

    def request(self, message: Request) -> Future[Any]:
        """Send a request. The future gets the result, or a NodeError.

        A request that is cancelled before the agent has started is not sent.
        """
        future: Future[Any] = Future()
        with self._lock:
            if self.failure is not None:
                future.set_exception(self.failure)
                return future
            message = msgspec.structs.replace(message, id=next(self._ids))
            self._pending[message.id] = future
            if self._unsent is None:
                self._write(self._channel.seal(_encoder.encode(message)))
            else:
                self._unsent.append(message)
        return future

    def close(self) -> None:
        """End the agent. The kernels of the node go on."""
        _close([self])

    def end(self) -> None:
        """End the agent at once, and block until all requests have failed."""
        self._kill()
        self._answer_reader.join()

    def _kill(self) -> None:
        _kill([self])

    def hang_up(self, end: float) -> None:
        """Let the agent end by itself. A write that blocks until a time of the monotonic clock keeps the pipe open."""
        assert self.process.stdin is not None
        if self._lock.acquire(timeout=max(0.0, end - time.monotonic())):
            with suppress(OSError):
                self.process.stdin.close()
            self._lock.release()

    def wait(self, end: float) -> None:
        """Wait until all requests have failed, or until a time of the monotonic clock."""
        self._answer_reader.join(max(0.0, end - time.monotonic()))

    def _start_thread(self, target: Any) -> threading.Thread:
        thread = threading.Thread(target=target, name=f"gpushare-{self.node}", daemon=True)
        thread.start()
        return thread

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with suppress(OSError, ValueError):  # the reader of the answers reports the end of the agent
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                if text := line.decode(errors="replace").strip():
                    self._errors.append(text)

    def _read_answers(self) -> None:
        assert self.process.stdout is not None
        lines = self.process.stdout
        try:
            if self._read_greeting():
                for line in lines:
                    text = self._channel.open(line)
                    self._last_answer_at = time.monotonic()
                    if text:
                        self._answer(_decoder.decode(text))
        except (ChannelError, msgspec.MsgspecError) as error:
            self._errors.append(str(error))
            self._kill()
        self._error_reader.join(_END_SECONDS)
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self.process.wait()
        lines.close()
        self._fail()

    def _ping(self) -> None:
        """Ask for a sign of the agent, and end a connection to an agent that gives none."""
        while not self._has_ended.wait(_PING_SECONDS):
            allowed = _NODE_SILENCE_SECONDS if self.is_greeted else _GREETING_SECONDS
            if time.monotonic() > self._last_answer_at + allowed:
                self._errors.append(f"no answer for {allowed:g} s")
                self._kill()
            elif self._lock.acquire(blocking=False):  # a request whose write blocks has the lock, and is a sign as well
                try:
                    if self.is_greeted:
                        self._write(self._channel.seal(b""))
                finally:
                    self._lock.release()

    def _read_greeting(self) -> bool:
        """Read lines up to the greeting, and send all requests so far. Return whether there was a greeting."""
        assert self.process.stdout is not None
        for line in itertools.islice(self.process.stdout, _MAX_FOREIGN_LINES):
            try:
                self._channel.accept(line)
            except VersionError:
                raise
            except ChannelError as error:
                self._errors.append(line.decode(errors="replace").strip() or str(error))
                continue
            self._last_answer_at = time.monotonic()
            with self._lock:
                self._write(self._channel.greeting())
                for message in self._unsent or ():
                    if self._pending[message.id].cancelled():
                        del self._pending[message.id]
                    else:
                        self._write(self._channel.seal(_encoder.encode(message)))
                self._unsent = None
            return True
        return False

    def _answer(self, answer: Answer) -> None:
        with self._lock:
            future = self._pending.pop(answer.id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if answer.reason:
            future.set_exception(NodeError(answer.message, answer.reason))
        else:
            future.set_result(answer.result)

    def _fail(self) -> None:
        """Fail all requests, because the agent has ended."""
        assert self.process.stdin is not None
        words = self.errors or f"exit status {self.process.poll()}"
        self._has_ended.set()
        with self._lock:
            reason = "agent_ended" if self.is_greeted else "engine_failed"  # then no request has been sent
            self.failure = NodeError(f"the node agent on {self.node} has ended: {words}", reason)
            pending, self._pending = list(self._pending.values()), {}
            with suppress(OSError):
                self.process.stdin.close()
        for future in pending:
            if future.set_running_or_notify_cancel():
                future.set_exception(self.failure)


def _kill(connections: Sequence[NodeConnection]) -> None:
    """End the processes of the engine's commands, each of which may hold the pipes, all at the same time.

    A command such as `srun` withdraws its job at SIGTERM.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for connection in connections:
            with suppress(ProcessLookupError):
                os.killpg(connection.process.pid, number)
        end = time.monotonic() + _WITHDRAWAL_SECONDS
        for connection in connections:
            with suppress(subprocess.TimeoutExpired, ProcessLookupError):
                connection.process.wait(max(0.0, end - time.monotonic()))
                while time.monotonic() < end:  # a shell ends before the command that it has started
                    os.killpg(connection.process.pid, 0)
                    time.sleep(_WITHDRAWAL_POLL_SECONDS)


def _close(connections: Sequence[NodeConnection]) -> None:
    """End node agents, all at the same time, by no thread, because a process that ends can start none."""
    end = time.monotonic() + _END_SECONDS
    for connection in connections:
        connection.hang_up(end)
    for connection in connections:
        connection.wait(end)
    _kill(connections)
    end = time.monotonic() + _END_SECONDS
    for connection in connections:
        connection.wait(end)


class NodeConnections:
    """Connections of this process, one for each command."""

    def __init__(self) -> None:
        self._is_closed = False  # for good
        self._lock = threading.Lock()
        self._by_command: dict[tuple[str, ...], NodeConnection] = {}

    def connection(self, node: str, command: Sequence[str]) -> NodeConnection:
        """Return the connection that this command has started, or a new one if that has ended. Raise NodeError."""
        key = tuple(command)
        with self._lock:
            if self._is_closed:
                raise NodeError("the process ends", "engine_failed")
            found = self._by_command.get(key)
            if found is None or found.failure is not None:
                found = self._by_command[key] = NodeConnection(node, command)
            return found

    def start_errors(self, command: Sequence[str]) -> str:
        """Return the last lines that the engine has printed, if this command has not started its agent yet, or ""."""
        with self._lock:
            found = self._by_command.get(tuple(command))
        return found.errors if found and not found.is_greeted else ""

    def present(self) -> list[NodeConnection]:
        """Return the connections that have not failed."""
        with self._lock:
            return [one for one in self._by_command.values() if one.failure is None]

    def close(self) -> None:
        """End all node agents, within some seconds."""
        with self._lock:
            found = [one for one in self._by_command.values() if one.failure is None]
            self._by_command = {}
        _close(found)

    def close_for_good(self) -> None:
        """End all node agents at the end of the process, within some seconds, and start none any more."""
        with self._lock:
            self._is_closed = True
        self.close()


CONNECTIONS = NodeConnections()
