"""A coordinator's whole edge and core without its process: whoever connects has the other end of a pair of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpushare.config import GpuShare
from jupyter_gpushare.coordinator.authority import Identity
from jupyter_gpushare.coordinator.daemon import Daemon
from jupyter_gpushare.coordinator.peer import Peer
from jupyter_gpushare.coordinator.service import Service
from jupyter_gpushare.coordinator.settings import LiveSettings
from jupyter_gpushare.core import invariants
from jupyter_gpushare.wire.client import encode

from ..coordinator.fake_process import CLOSED, CLOSING, OPEN, STEP, Connection, FakeProcess
from .virtual import VirtualLoop

USER = 1000  # whose clients behave


class Paired(Connection):
    """A connection whose other end the edge has."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)
        self.received = bytearray()
        self.descriptors = []
        self.doorbells = 0

    def news(self) -> dict[str, Any] | None:
        """The next message that is here already; None: there is none, or the connection has ended."""
        try:
            return self.receive()
        except BlockingIOError:
            return None


class Edge:
    """The daemon and what answers for it, on a loop of virtual time."""

    def __init__(self, loop: VirtualLoop, folder: Path, **settings: Any) -> None:
        self.loop = loop
        asyncio.set_event_loop(loop)
        self.peers: set[Peer] = set()
        self.lines = self.stops = 0
        loop.run_until_complete(self._begin(folder, settings))

    async def _begin(self, folder: Path, settings: dict[str, Any]) -> None:
        self.daemon = Daemon(LiveSettings(GpuShare(**settings)), str(folder / "c.sock"))
        self.service = Service(self.daemon, self._stop)

    def _stop(self) -> None:
        self.stops += 1

    def connect(self, uid: int) -> Paired:
        ours, theirs = socket.socketpair()
        self.loop.run_until_complete(self._accept(ours, uid))
        return Paired(theirs)

    async def _accept(self, end: socket.socket, uid: int) -> None:
        # What the kernel says of it; only root could be several users.
        peer = Peer(end, Identity(str(uid), uid in (0, os.getuid()), os.getpid(), uid), self._line, self._ended)
        self.peers.add(peer)
        self.service.connected(peer)

    def _line(self, peer: Peer, line: bytes) -> None:
        self.lines += 1
        self.service.line(peer, line)

    def _ended(self, peer: Peer) -> None:
        self.peers.discard(peer)
        self.service.ended(peer)

    def handle(self) -> None:
        """All that was sent."""
        self.loop.run_until_complete(_turns_of_the_loop(2))

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def check(self) -> None:
        """The scheduler's books are right, and nothing went wrong unseen."""
        invariants.check(self.daemon.scheduler, self.daemon.scheduler.turns.now)
        assert not self.loop.bugs, self.loop.bugs

    def ask(self, message: Any, uid: int = 0) -> Any:
        """The result of a request of that user, an admin if it is not said."""
        connection = self.connect(uid)
        try:
            connection.send(encode(message))
            self.handle()
            answer = connection.news()
            assert answer and answer["type"] == "reply", answer
            return answer["result"]
        finally:
            connection.close()
            self.handle()

    def close(self) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()
        asyncio.set_event_loop(None)

    async def _close(self) -> None:
        for peer in list(self.peers):
            peer.drop()
        self.daemon.close()


async def _turns_of_the_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class Correct(FakeProcess):
    """A process that does what it should: it waits for turns, and drains as soon as it is told to."""

    def __init__(self, edge: Edge, client: str, device: str) -> None:
        super().__init__("", client, device)
        self._edge, self._waits = edge, False
        self.running = False
        self.turns = 0
        self.connection = edge.connect(USER)
        self.connection.send(self.hello(), [self.page_fd, self.client_fd, *self.locks])
        edge.handle()
        assert (self.connection.news() or {}).get("type") == "welcome"

    def act(self) -> None:
        """Look at the page, as the doorbell asks for."""
        assert isinstance(self.connection, Paired)
        while said := self.connection.news():
            raise AssertionError(f"{self.client} was told {said}")
        state, epoch = self.gate
        if state in (OPEN, STEP):
            if not self.running:
                self.turns += 1
            self.running, self._waits = True, False
        elif state == CLOSING and self.report.drained_epoch != epoch:
            self.running = self._waits = False
            self.drain()
        elif not self._waits:
            assert state in (CLOSED, CLOSING)
            self._waits = True
            self.wants()

    def is_alone(self) -> str:
        """What contradicts that this process alone has the device now; nothing does."""
        device = self._edge.daemon.scheduler.devices[self.devices[0]]
        if [grant.client.id for grant in device.grants] != [self.client]:
            return f"{self.client} runs, granted are {device.grants}"
        with open(f"/proc/self/fdinfo/{self.locks[0]}", encoding="ascii") as file:
            if not any("FLOCK" in line and "WRITE" in line for line in file):
                return f"{self.client} runs without the device's lock"
        return ""


class Bugs(logging.Handler):
    """What the coordinator logs as a fault of its own."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.found.append(self.format(record))


@contextlib.contextmanager
def bugs() -> Iterator[list[str]]:
    handler = Bugs()
    log = logging.getLogger("jupyter_gpushare")
    level, propagates = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING)
    log.propagate = False
    try:
        yield handler.found
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors() -> int:
    """Those that are open, but for one of each lock file: the coordinator keeps that of a device it has looked at."""
    names = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return len(names) - len({name for name in names if name.endswith(".lock")})
