"""Link of a process with its coordinator through a Unix socket.

The link connects, sends hello, and handles the answer.
A doorbell is a line with only a zero byte.
The link disconnects when the coordinator's heartbeat is too old, and connects again after a delay.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import Any, Protocol

from .pages import Page

DISCONNECTED, CONNECTING, CONNECTED = "disconnected", "connecting", "connected"
DOORBELL = b"\0\n"
SECOND_NS = 1_000_000_000
ANSWER_TIMEOUT_NS, HEARTBEAT_TIMEOUT_NS = 16 * SECOND_NS, 5 * SECOND_NS
MIN_RETRY_NS, MAX_RETRY_NS = SECOND_NS // 40, SECOND_NS // 4
MAX_BACKOFF_NS = 16 * SECOND_NS


class Connection(Protocol):
    """End of a connection, as a process uses it."""

    def send(self, line: bytes, descriptors: list[int] | None = None) -> int:
        """Return 1 if the line was sent, 0 if there is no room, -1 if the other end is closed."""

    def receive(self) -> tuple[bytes, list[int]] | None:
        """Return the bytes that have arrived and their descriptors, or None; empty bytes are the end."""

    def close(self) -> None: ...


class LinkOwner(Protocol):
    """The process of a link."""

    page: Page

    def now(self) -> int: ...

    def connect(self) -> Connection | None: ...

    def new_page(self) -> None: ...

    def hello(self) -> dict[str, Any]: ...

    def descriptors_of_hello(self) -> list[int]: ...

    def join(self, descriptor: int) -> bool: ...

    def on_welcome(self) -> None: ...

    def on_refused(self, message: dict[str, Any]) -> None: ...


class SocketConnection:
    """Connection to a coordinator through a Unix socket."""

    def __init__(self, path: str) -> None:
        """Connect. Raises OSError where no coordinator listens, or where its queue of new connections is full."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        try:
            self.socket.connect(path)
        except OSError:
            self.socket.close()
            raise

    def send(self, line: bytes, descriptors: list[int] | None = None) -> int:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            return 1 if self.socket.sendmsg([line], rights) == len(line) else -1
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def receive(self) -> tuple[bytes, list[int]] | None:
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 16, socket.CMSG_SPACE(66 * 4), socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return None
        except OSError:
            return b"", []
        return data, [number for _, _, payload in ancillary for number in array.array("i", payload)]

    def close(self) -> None:
        self.socket.close()


class Link:
    """Link of one process."""

    def __init__(self, process: LinkOwner) -> None:
        self._process = process
        self.state = DISCONNECTED
        self.connection: Connection | None = None
        self.away_since = 0  # ns; 0 while the coordinator is not away
        self.messages: list[dict[str, Any]] = []  # received, apart from answers to hello
        self._doorbell_due = False
        self._received_descriptors: list[int] = []
        self._received = bytearray()
        self._connect_at = 0
        self._hello_sent_at = self._welcomed_at = 0
        self._backoff_ns = 0

    @property
    def descriptors(self) -> int:
        """Return the number of descriptors that have arrived and that no message has claimed."""
        return len(self._received_descriptors)

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> int:
        if self.connection is None:
            return -1
        return self.connection.send(json.dumps(message).encode() + b"\n", descriptors)

    def ring(self) -> None:
        """Ring the coordinator's doorbell."""
        self._doorbell_due = True
        self._flush()

    def _flush(self) -> None:
        if self.state != CONNECTED or not self._doorbell_due or self.connection is None:
            return
        sent = self.connection.send(DOORBELL)
        self._doorbell_due = sent == 0
        if sent < 0:
            self.disconnect()

    def disconnect(self) -> None:
        now = self._process.now()
        if self.state == CONNECTED or not self.away_since:
            self.away_since = now
        self.state = DISCONNECTED
        self.close()
        self._received.clear()
        self._doorbell_due = False
        self._connect_at = max(now + self._backoff_ns, self._next_retry(now))

    def _next_retry(self, now: int) -> int:
        return now + min(max((now - self.away_since) // 8, MIN_RETRY_NS), MAX_RETRY_NS)

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None
        self._drop_descriptors()

    def _drop_descriptors(self) -> None:
        for descriptor in self._received_descriptors:
            os.close(descriptor)
        self._received_descriptors.clear()

    def _increase_backoff(self) -> None:
        self._backoff_ns = min(self._backoff_ns * 2 or SECOND_NS, MAX_BACKOFF_NS)

    def step(self, now: int) -> Iterator[None]:
        """Read the messages that have arrived, and connect or disconnect when that is due."""
        if self.connection:
            yield from self._read_lines(now)
        self._flush()
        if self.state == DISCONNECTED and now >= self._connect_at:
            yield from self._connect(now)
        elif self.state != DISCONNECTED and now >= self.next_step_at():
            self.disconnect()

    def next_step_at(self) -> int:
        """Return the time of the next step in nanoseconds, unless a message arrives before."""
        if self.state == DISCONNECTED:
            return self._connect_at
        return (
            self._hello_sent_at + ANSWER_TIMEOUT_NS
            if self.state == CONNECTING
            else self._last_heartbeat() + HEARTBEAT_TIMEOUT_NS
        )

    def _last_heartbeat(self) -> int:
        return max(int(self._process.page.control.heartbeat_ns), self._welcomed_at)

    def _connect(self, now: int) -> Iterator[None]:
        process = self._process
        self.away_since = self.away_since or now
        self._connect_at = self._next_retry(now)
        connection = process.connect()
        if connection is None:
            return
        process.new_page()
        self.state, self.connection, self._hello_sent_at = CONNECTING, connection, now
        yield
        if self.send(process.hello(), process.descriptors_of_hello()) <= 0:
            self.disconnect()

    def _read_lines(self, now: int) -> Iterator[None]:
        while self.connection and (received := self.connection.receive()) is not None:
            data, descriptors = received
            self._received_descriptors += descriptors
            if not data:
                self.disconnect()
                return
            self._received += data
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if line.strip(b"\0"):
                    self._handle_message(json.loads(line), now)
                    yield
                if self.state == DISCONNECTED:
                    return
            self._drop_descriptors()

    def _handle_message(self, message: dict[str, Any], now: int) -> None:
        kind = message["type"]
        if kind == "error":
            self._process.on_refused(message)
            self._increase_backoff()
            self.disconnect()
        elif self.state == CONNECTING and kind in ("join", "welcome"):
            if kind == "join" and not self._process.join(self._received_descriptors.pop(0)):
                self._increase_backoff()
                self.disconnect()
                return
            self.state, self.away_since, self._backoff_ns, self._welcomed_at = CONNECTED, 0, 0, now
            self._process.on_welcome()
            self._doorbell_due = True  # the report may have changed since hello
        elif kind == "move":
            error = "the process has no CUDA driver that could move it"
            self.send({"type": "moved", "device": message["devices"][0], "error": error})
        else:
            self.messages.append(message)


def connect(path: str) -> SocketConnection | None:
    """Return a connection to the coordinator at `path`, or None if no coordinator accepts one."""
    with contextlib.suppress(OSError):
        return SocketConnection(path)
    return None
