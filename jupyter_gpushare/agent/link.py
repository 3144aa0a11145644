"""The contact of a process with its coordinator: connect, hello and its answer, doorbells, the heartbeat's age."""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .process import Process

AWAY, ASKING, THERE = "away", "asking", "there"
DOORBELL = b"\0\n"
S = 1_000_000_000
ANSWER, STALE = 2 * S, 5 * S
SOONEST_RETRY, LATEST_RETRY = S // 40, S // 4
LONGEST_HOLD_OFF = 16 * S


class Connection(Protocol):
    """One end of a connection, as a process uses it."""

    def send(self, line: bytes, descriptors: list[int] | None = None) -> int:
        """Return 1: sent; 0: there is no room; -1: the other end is closed."""

    def receive(self) -> tuple[bytes, list[int]] | None:
        """Return what has arrived with its descriptors; empty bytes: the end; None: nothing."""

    def close(self) -> None: ...


class SocketConnection:
    """A real connection to a coordinator. Raises OSError where none listens, or too many wait to be accepted."""

    def __init__(self, path: str) -> None:
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
    """The contact of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.contact = AWAY
        self.connection: Connection | None = None
        self.away_since = 0  # 0: there is contact
        self.messages: list[dict[str, Any]] = []  # received, apart from answers to hello
        self._doorbell_due = False
        self._arrived: list[int] = []
        self._received = bytearray()
        self._next_try = 0
        self._asked_at = self._welcomed_at = 0
        self._hold_off = 0

    @property
    def descriptors(self) -> int:
        """Return how many files have arrived that no message has claimed."""
        return len(self._arrived)

    def send(self, message: dict[str, Any], descriptors: list[int] | None = None) -> int:
        if self.connection is None:
            return -1
        return self.connection.send(json.dumps(message).encode() + b"\n", descriptors)

    def ring(self) -> None:
        """Ring the coordinator's doorbell."""
        self._doorbell_due = True
        self._flush()

    def _flush(self) -> None:
        if self.contact != THERE or not self._doorbell_due or self.connection is None:
            return
        sent = self.connection.send(DOORBELL)
        self._doorbell_due = sent == 0
        if sent < 0:
            self.lose()

    def lose(self) -> None:
        now = self._process.now()
        if self.contact == THERE or not self.away_since:
            self.away_since = now
        self.contact = AWAY
        self.close()
        self._received.clear()
        self._doorbell_due = False
        self._next_try = max(now + self._hold_off, self._next_retry(now))

    def _next_retry(self, now: int) -> int:
        return now + min(max((now - self.away_since) // 8, SOONEST_RETRY), LATEST_RETRY)

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None
        self._drop_descriptors()

    def _drop_descriptors(self) -> None:
        for descriptor in self._arrived:
            os.close(descriptor)
        self._arrived.clear()

    def _holds_off(self) -> None:
        self._hold_off = min(self._hold_off * 2 or S, LONGEST_HOLD_OFF)

    def step(self, now: int) -> Iterator[None]:
        """Read what has arrived, and connect or give up when that is due."""
        if self.connection:
            yield from self._read_lines(now)
        self._flush()
        if self.contact == AWAY and now >= self._next_try:
            yield from self._connect(now)
        elif self.contact == ASKING and now >= self._asked_at + ANSWER:
            self._holds_off()
            self.lose()
        elif self.contact == THERE and now >= self._last_sign() + STALE:
            self.lose()

    def due(self) -> int:
        """Return when to step again, if nothing arrives before."""
        if self.contact == AWAY:
            return self._next_try
        return self._asked_at + ANSWER if self.contact == ASKING else self._last_sign() + STALE

    def _last_sign(self) -> int:
        return max(int(self._process.page.orders.heartbeat_ns), self._welcomed_at)

    def _connect(self, now: int) -> Iterator[None]:
        process = self._process
        self.away_since = self.away_since or now
        self._next_try = self._next_retry(now)
        connection = process.connect()
        if connection is None:
            return
        process.new_page()
        self.contact, self.connection, self._asked_at = ASKING, connection, now
        yield
        if self.send(process.hello(), process.descriptors_of_hello()) <= 0:
            self.lose()

    def _read_lines(self, now: int) -> Iterator[None]:
        while self.connection and (part := self.connection.receive()) is not None:
            data, descriptors = part
            self._arrived += descriptors
            if not data:
                self.lose()
                return
            self._received += data
            *lines, rest = self._received.split(b"\n")
            self._received = bytearray(rest)
            for line in lines:
                if line.strip(b"\0"):
                    self._take(json.loads(line), now)
                    yield
                if self.contact == AWAY:
                    return
            self._drop_descriptors()

    def _take(self, message: dict[str, Any], now: int) -> None:
        kind = message["type"]
        if kind == "error":
            self._process.refused(message)
            self._holds_off()
            self.lose()
        elif self.contact == ASKING and kind in ("join", "welcome"):
            if kind == "join" and not self._process.join(self._arrived.pop(0)):
                self._holds_off()
                self.lose()
                return
            self.contact, self.away_since, self._hold_off, self._welcomed_at = THERE, 0, 0, now
            self._process.welcomed()
            self._doorbell_due = True  # the report may have changed since hello
        else:
            self.messages.append(message)


def connect(path: str) -> SocketConnection | None:
    """Return a real connection; None: no coordinator accepts one there now."""
    with contextlib.suppress(OSError):
        return SocketConnection(path)
    return None
