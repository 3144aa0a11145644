"""A coordinator that does what a test tells it, over a real socket: it decides nothing by itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import ClientPage, Page

WAIT = 10.0  # seconds until a test is told that something does not happen


def until(condition: Any, seconds: float = WAIT, what: str = "") -> Any:
    """The first true value of `condition()`; AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"did not happen within {seconds} s: {what or condition}"
        time.sleep(0.001)


class Process:
    """A process that said hello: its connection, its page, its descriptors."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(WAIT)
        data, descriptors, _, _ = socket.recv_fds(connection, messages.MAX_LINE, 80)
        self._data = data
        self.hello = self.next()
        self.page = Page(descriptors.pop(0))
        self.client_page = ClientPage(descriptors.pop(0))
        self.locks = descriptors
        self.page.orders.heartbeat_ns = time.monotonic_ns() + 3_600_000_000_000

    def next(self, seconds: float = WAIT) -> dict[str, Any]:
        """The next message, blank lines left out. AssertionError if none comes in time."""
        self.connection.settimeout(seconds)
        while b"\n" not in self._data:
            try:
                more = self.connection.recv(65536)
            except TimeoutError:
                raise AssertionError(f"no message within {seconds} s") from None
            assert more, "the process closed its connection"
            self._data += more
        line, self._data = self._data.split(b"\n", 1)
        return json.loads(line) if line else self.next(seconds)

    def expect(self, kind: str, seconds: float = WAIT, **fields: Any) -> dict[str, Any]:
        """The next message, which must be of this type and have these fields."""
        message = self.next(seconds)
        wanted = {"type": kind} | fields
        assert {name: message.get(name) for name in wanted} == wanted
        return message

    def silent(self, seconds: float = 0.1) -> bool:
        """Does nothing come for so long?"""
        self.connection.settimeout(seconds)
        with contextlib.suppress(TimeoutError):
            self._data += self.connection.recv(65536)
        return not self._data.strip(b"\n")

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> None:
        line = json.dumps(message).encode() + b"\n"
        if descriptors:
            socket.send_fds(self.connection, [line], descriptors)
        else:
            self.connection.sendall(line)

    def welcome(self) -> Process:
        self.send({"type": "welcome"})
        return self

    def join(self, first: Process, slot: int) -> Process:
        self.page.orders.slot = slot
        self.send({"type": "join"}, [first.client_page.descriptor, *first.locks])
        return self

    def open(self, epoch: int) -> None:
        self.page.open_gate(epoch)
        self.doorbell()

    def close_gate(self, epoch: int) -> None:
        self.page.close_gate(epoch)
        self.doorbell()

    def doorbell(self) -> None:
        self.connection.sendall(messages.DOORBELL)

    def drain(self, epoch: int, seconds: float = WAIT) -> bool:
        """Close and wait for the answer. True if a thread that found the gate closed has said "wants" before it."""
        self.close_gate(epoch)
        while (message := self.next(seconds))["type"] == "short":
            pass  # sent as often as it took
        if wants := message["type"] == "wants":
            message = self.next(seconds)
        assert message == {"type": "drained", "epoch": epoch}, f"{message}, epoch {epoch}"
        return wants

    def lock(self) -> None:
        for descriptor in self.locks:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def unlock(self) -> None:
        for descriptor in self.locks:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def hang_up(self) -> None:
        """What the process sees when the coordinator dies; its descriptors go too."""
        self.connection.close()
        self.page.close()
        self.client_page.close()
        for descriptor in self.locks:
            os.close(descriptor)
        self.locks = []


class FakeCoordinator:
    """Listens at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.processes: list[Process] = []
        self._listener = socket.socket(socket.AF_UNIX)
        path.unlink(missing_ok=True)
        self._listener.bind(str(path))
        self._listener.listen(16)

    def accept(self, seconds: float = WAIT) -> Process:
        """The next process that says hello."""
        self._listener.settimeout(seconds)
        try:
            connection, _ = self._listener.accept()
        except TimeoutError:
            raise AssertionError(f"nobody connected within {seconds} s") from None
        process = Process(connection)
        self.processes.append(process)
        return process

    def die(self) -> None:
        """As by SIGKILL: nobody answers any more."""
        self._listener.close()
        for process in self.processes:
            if process.connection.fileno() >= 0:
                process.hang_up()
        self.processes.clear()


@contextlib.contextmanager
def fake_coordinator(path: Path) -> Iterator[FakeCoordinator]:
    coordinator = FakeCoordinator(path)
    try:
        yield coordinator
    finally:
        coordinator.die()
