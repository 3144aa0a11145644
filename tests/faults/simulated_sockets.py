"""Simulated connections of a coordinator, which deliver bytes and descriptors in order, after random delays.

The coordinator's side has the methods of a socket that the real `Connection` uses.
Descriptors are real: each send duplicates them as the Linux kernel does, and a message that is not read closes them.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from ..support.virtual_clock import EventOwner, VirtualClock

if TYPE_CHECKING:
    from .coordinator import CoordinatorUnderTest
    from .simulated_host import FaultyClient

MAX_MESSAGES = 256  # unread messages in a socket; the Linux kernel uses a kilobyte for a small message
MAX_BYTES = 200_000  # unread bytes in a socket

Part = tuple[bytes, list[int]]


@dataclass
class MessageFaults:
    """Probabilities of faults in the lines of a client."""

    lost: float = 0.0
    late: float = 0.0  # by up to a second, and therefore out of order
    repeated: float = 0.0


class CoordinatorKilled(BaseException):
    """Signal that the coordinator was killed while it handled an event."""


class Channel:
    """One direction of a connection."""

    def __init__(self, clock: VirtualClock, kernel: EventOwner, random: Random, readable: Callable[[], None]) -> None:
        self._clock, self._kernel, self._random, self._readable = clock, kernel, random, readable
        self.split_probability = 0.0  # of a line that arrives in two parts
        self._last_arrival = 0.0  # arrival time of the last part
        self.parts: deque[Part] = deque()  # parts that have arrived
        self.count = self.size = 0  # parts and bytes that were sent and not read
        self.ended = False  # the end of file has arrived
        self.closed = False  # the reader has closed its end

    def free_bytes(self) -> int:
        return MAX_BYTES - self.size if self.count < MAX_MESSAGES else 0

    def send(self, data: bytes, descriptors: list[int]) -> None:
        given = [os.dup(descriptor) for descriptor in descriptors]
        cut = len(data)
        if cut > 1 and self._random.random() < self.split_probability:
            cut = self._random.randrange(1, cut)
        self._send(data[:cut], given)
        if data[cut:]:
            self._send(data[cut:], [])

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        self.count += 1
        self.size += len(data)
        self._clock.schedule(self._arrival(), self._kernel, self._arrive, (data, descriptors))

    def _arrival(self) -> float:
        random = self._random
        delay = random.expovariate(20_000.0) if random.random() < 0.98 else random.uniform(0.0, 0.01)
        self._last_arrival = max(self._last_arrival, self._clock.now + delay)
        return self._last_arrival

    def _arrive(self, part: Part) -> None:
        if self.closed:
            close_all(part[1])
        else:
            self.parts.append(part)
            self._readable()

    def end(self) -> None:
        """Close the writer's end; the reader gets all earlier parts before the end."""
        self._clock.schedule(self._arrival(), self._kernel, self._end)

    def _end(self) -> None:
        self.ended = True
        if not self.closed:
            self._readable()

    def take(self) -> Part | None:
        """Return the next part, empty bytes at the end, or None if no part has arrived."""
        if not self.parts:
            return (b"", []) if self.ended else None
        part = self.parts.popleft()
        self.count -= 1
        self.size -= len(part[0])
        return part

    def close(self) -> None:
        """Close the reader's end."""
        self.closed = True
        while self.parts:
            close_all(self.parts.popleft()[1])


class ActorConnection:
    """Connection as its actor uses it. `on_readable` is called when a part or the end has arrived."""

    def __init__(
        self,
        coordinator: CoordinatorUnderTest,
        random: Random,
        credentials: tuple[int, int],
        on_readable: Callable[[], None],
    ) -> None:
        self.coordinator, self.credentials = coordinator, credentials
        clock, kernel = coordinator.clock, coordinator.kernel
        self.coordinator_socket = CoordinatorSocket(self)
        self.up = Channel(clock, kernel, random, self.coordinator_socket.readable)
        self.down = Channel(clock, kernel, random, on_readable)
        self.up.split_probability = 0.02
        self.open = True
        self.client: FaultyClient | None = None  # client that may send faulty lines
        self.owner: EventOwner = coordinator.kernel
        clock.schedule(
            clock.now + random.expovariate(20_000.0), coordinator, coordinator.accept, self.coordinator_socket
        )

    def send(self, line: bytes, descriptors: list[int] | None = None) -> int:
        """Return 1 if the line was sent, 0 if there is no room, -1 if the other end is closed."""
        if not self.open or self.up.closed:
            return -1
        if self.up.free_bytes() < len(line):
            return 0
        for one in [line] if descriptors or self.client is None else self._apply_faults(line):
            self.up.send(one, descriptors or [])
        return 1

    def _apply_faults(self, line: bytes) -> list[bytes]:
        """Return the lines that are sent now in the place of a line."""
        faults = self.client.message_faults if self.client else None
        if faults is None or self.client is None:
            return [line]
        random = self.client.host.message_random
        chance = random.random()
        if chance < faults.lost:
            return []
        if (chance := chance - faults.lost) < faults.late:
            delay = random.choice((0.002, 0.05, 1.0)) * random.random()
            clock = self.coordinator.clock
            clock.schedule(clock.now + delay, self.owner, self._send_late, line)
            return []
        return [line, line] if chance - faults.late < faults.repeated else [line]

    def _send_late(self, line: bytes) -> None:
        if self.open and not self.up.closed and self.up.free_bytes() >= len(line):
            self.up.send(line, [])

    def receive(self) -> Part | None:
        part = self.down.take()
        if part and part[0] and self.down.count < MAX_MESSAGES // 2:
            self.coordinator_socket.writable()
        return part

    def close(self) -> None:
        """Close the actor's end, also when its owner dies."""
        if self.open:
            self.open = False
            self.down.close()
            self.up.end()


class CoordinatorSocket:
    """Accepted end of a connection, with the methods of a socket that `Connection` uses."""

    numbers = 1 << 20

    def __init__(self, connection: ActorConnection) -> None:
        CoordinatorSocket.numbers += 1
        self.number = CoordinatorSocket.numbers
        self.connection = connection
        connection.coordinator.sockets[self] = None

    def readable(self) -> None:
        coordinator = self.connection.coordinator
        coordinator.clock.schedule(coordinator.clock.now, coordinator, self._read)

    def _read(self) -> None:
        """Call the loop's reader until no part is left."""
        up = self.connection.up
        while (up.parts or up.ended) and self.connection.coordinator.loop.readable(self.number):
            pass

    def writable(self) -> None:
        coordinator = self.connection.coordinator
        coordinator.clock.schedule(coordinator.clock.now, coordinator, coordinator.loop.writable, self.number)

    def fileno(self) -> int:
        return self.number

    def setblocking(self, blocking: bool) -> None:
        assert not blocking

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_PEERCRED)
        pid, uid = self.connection.credentials
        return struct.pack("iII", pid, uid, uid)

    def recvmsg(self, size: int, ancillary: int, flags: int) -> tuple[bytes, list[Any], int, None]:
        assert size and ancillary and flags
        part = self.connection.up.take()
        if part is None:
            raise BlockingIOError
        data, descriptors = part
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors).tobytes())
        return data, [rights] if descriptors else [], 0, None

    def send(self, line: bytes, flags: int) -> int:
        return self.sendmsg([line], [], flags)

    def sendmsg(self, lines: list[bytes], rights: list[Any], flags: int) -> int:
        assert flags == socket.MSG_NOSIGNAL
        connection = self.connection
        connection.coordinator.before_send()
        if not connection.open:
            raise BrokenPipeError
        line = bytes(lines[0][: connection.down.free_bytes()])
        if not line:
            raise BlockingIOError
        connection.down.send(line, [number for _, _, numbers in rights for number in numbers])
        return len(line)

    def close(self) -> None:
        if not self.connection.up.closed:
            self.connection.coordinator.sockets.pop(self, None)
            self.connection.up.close()
            self.connection.down.end()


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
