"""Coordinator inside the test process, whose clients connect by pairs of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jupyter_gpushare.agent.link import SocketConnection
from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings
from jupyter_gpushare.coordinator.engine.coordinator import Coordinator
from jupyter_gpushare.coordinator.rpc.request_dispatcher import make_dispatcher
from jupyter_gpushare.coordinator.transport.connection import Connection
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.core.views import invariants
from jupyter_gpushare.wire.client import encode
from jupyter_gpushare.wire.page import IN

from ..coordinator.protocol_process import ProtocolProcess, RawConnection
from .virtual_loop import VirtualLoop

WELL_BEHAVED_UID = 1000  # user of the well-behaved clients


class ConnectedPair(RawConnection):
    """Connection whose other end the coordinator has."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)
        self.received = bytearray()
        self.descriptors = []

    def next_message(self) -> dict[str, Any] | None:
        """Return the next message that has arrived, or None without one or after the end of the connection."""
        try:
            return self.receive()
        except BlockingIOError:
            return None


class InProcessCoordinator:
    """Coordinator and request dispatcher on an event loop of virtual time."""

    def __init__(self, loop: VirtualLoop, folder: Path, **settings: Any) -> None:
        self.loop = loop
        asyncio.set_event_loop(loop)
        self.connections: set[Connection] = set()
        self.lines = self.stops = 0
        loop.run_until_complete(self._begin(folder, settings))

    async def _begin(self, folder: Path, settings: dict[str, Any]) -> None:
        self.coordinator = Coordinator(LiveSettings(GpuShare(**settings)), str(folder / "c.sock"))
        self.dispatcher = make_dispatcher(self.coordinator, self._stop)

    def _stop(self) -> None:
        self.stops += 1

    def connect(self, uid: int) -> ConnectedPair:
        own_end, peer_end = socket.socketpair()
        self.loop.run_until_complete(self._accept(own_end, uid))
        return ConnectedPair(peer_end)

    async def _accept(self, end: socket.socket, uid: int) -> None:
        # The identity is invented, because a real connection of another user would need root.
        connection = Connection(
            end, Identity(str(uid), uid in (0, os.getuid()), os.getpid(), uid), self._line, self._closed
        )
        self.connections.add(connection)
        self.dispatcher.on_connected(connection)

    def _line(self, connection: Connection, line: bytes) -> None:
        self.lines += 1
        self.dispatcher.on_line(connection, line)

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self.dispatcher.on_closed(connection)

    def handle_pending(self) -> None:
        """Handle all messages that were sent."""
        self.loop.run_until_complete(_run_loop(2))

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def check(self) -> None:
        """Check the scheduler's invariants, and that no callback has raised."""
        invariants.check(self.coordinator.state.scheduler, self.coordinator.state.scheduler.turns.table.now)
        assert not self.loop.bugs, self.loop.bugs

    def request(self, message: Any, uid: int = 0) -> Any:
        """Send a request of a user, by default an admin, and return its result."""
        connection = self.connect(uid)
        try:
            connection.send(encode(message))
            self.handle_pending()
            answer = connection.next_message()
            assert answer and answer["type"] == "reply", answer
            return answer["result"]
        finally:
            connection.close()
            self.handle_pending()

    def close(self) -> None:
        self.loop.run_until_complete(self._close())
        self.loop.close()
        asyncio.set_event_loop(None)

    async def _close(self) -> None:
        for connection in list(self.connections):
            connection.drop()
        self.coordinator.close()


async def _run_loop(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class WellBehavedClient(ProtocolProcess):
    """Process that follows the protocol: it waits for turns, and its work ends as soon as its turn closes."""

    def __init__(self, in_process: InProcessCoordinator, client: str, device: str) -> None:
        super().__init__("", client, device)
        self.live.remove(self)  # this process acts only in `act`
        self._in_process = in_process
        self.turns = 0
        for _ in range(3):
            self.run_step()
            in_process.handle_pending()
        assert self.connected, self.refusals

    def now(self) -> int:
        return int(self._in_process.loop.time() * 1e9)

    def connect(self) -> SocketConnection:
        connection = SocketConnection.__new__(SocketConnection)
        connection.socket = self._in_process.connect(WELL_BEHAVED_UID).socket
        return connection

    def is_quiet(self) -> bool:
        return True

    def on_entered(self, turn: int) -> None:
        self.turns += 1

    @property
    def running(self) -> bool:
        return self.phase == IN

    def act(self) -> None:
        """Run a step with a thread at the gate."""
        self.waiting = 1
        self.run_step()
        assert not self.refusals, self.refusals
        assert not self.link.messages, self.link.messages

    def close(self) -> None:
        self.live.append(self)
        super().close()


class BugCollector(logging.Handler):
    """Log handler that collects errors, which the coordinator logs only for its own bugs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.found.append(self.format(record))


@contextlib.contextmanager
def bugs() -> Iterator[list[str]]:
    handler = BugCollector()
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
    """Count the open descriptors, without one for each lock file, because the coordinator keeps lock files open."""
    names = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.islink(entry.path)]
    return len(names) - len({name for name in names if name.endswith(".lock")})
