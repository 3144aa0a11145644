"""Coordinator under test: the real coordinator and request dispatcher on the virtual clock, until its end or kill."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings
from jupyter_gpushare.coordinator.engine import coordinator as coordinators
from jupyter_gpushare.coordinator.engine.coordinator import Coordinator
from jupyter_gpushare.coordinator.gpu.nvml import Nvml
from jupyter_gpushare.coordinator.host.cgroups import MemoryCgroup
from jupyter_gpushare.coordinator.monitoring import host_backing
from jupyter_gpushare.coordinator.rpc.request_dispatcher import make_dispatcher
from jupyter_gpushare.coordinator.transport.connection import Connection
from jupyter_gpushare.coordinator.transport.peer_identity import Identity

from ..support.virtual_clock import EventOwner, SimulatedLoop, VirtualClock
from .simulated_sockets import CoordinatorSocket


class NoNvml(Nvml):
    """NVML of a host without it: the coordinator gets its devices from processes."""

    def __init__(self) -> None:
        self._nvml = None
        self._devices = {}


class NoStateStore:
    """State store on a full disk: a coordinator gets the state of earlier coordinators from pages only."""

    problems: tuple[str, ...] = ()

    def __init__(self, path: Path, report: Callable[..., object]) -> None:
        pass

    def load(self, loaded: Callable[[dict[str, Any]], None], wait: float) -> None:
        loaded({})

    def ignore(self, *what: Any) -> None:
        pass

    save_client = add_usage = flush = prune = query_usage = ignore

    def close(self) -> None:
        pass


@contextmanager
def simulated_kernel(
    is_stopped: Callable[[int], bool],
    open_pidfd: Callable[[int], int],
    cgroups_of: Callable[[int], tuple[MemoryCgroup, ...]],
) -> Iterator[None]:
    """Simulate the coordinator's system calls besides clock, sockets, memory and locks.

    `is_stopped` reports whether a process is stopped.
    `open_pidfd` returns a descriptor for the end of a process, or raises OSError.
    `cgroups_of` returns the cgroups of a process that have a memory limit.
    """
    with (
        mock.patch.object(ProcessHandle, "is_stopped", property(lambda handle: is_stopped(handle.connection.pid))),
        mock.patch.object(os, "pidfd_open", open_pidfd),
        mock.patch.object(host_backing, "available_bytes", lambda *_: 64 << 30),
        mock.patch.object(host_backing.MemoryCgroups, "of_process", lambda _, pid: cgroups_of(pid)),
        mock.patch.object(coordinators.nvml, "Nvml", NoNvml),
        mock.patch.object(coordinators, "StateStore", NoStateStore),
    ):
        yield


class CoordinatorUnderTest(EventOwner):
    """Coordinator from its start to its end. Each send first calls `before_send`, which may interrupt the send."""

    def __init__(
        self, clock: VirtualClock, kernel: EventOwner, random: Random, settings: LiveSettings, path: str
    ) -> None:
        super().__init__()
        self.clock, self.kernel, self.random = clock, kernel, random
        self.loop = SimulatedLoop(clock, self, random)
        self.connections: dict[Connection, None] = {}
        self.on_send: Callable[[], None] | None = None
        self.sockets: dict[CoordinatorSocket, None] = {}  # accepted connections, and connections in the queue
        asyncio._set_running_loop(self.loop)  # type: ignore[arg-type]
        self.engine = Coordinator(settings, path)
        self.service = make_dispatcher(self.engine, lambda: None)

    def __str__(self) -> str:
        return "the coordinator"

    def accept(self, socket: CoordinatorSocket) -> None:
        if socket not in self.sockets:
            return
        pid, uid = socket.connection.credentials
        identity = Identity(str(uid), uid in (0, os.getuid()), pid, uid)
        connection = Connection(socket, identity, self.service.on_line, self._ended)  # type: ignore[arg-type]
        self.connections[connection] = None
        self.service.on_connected(connection)
        socket._read()

    def _ended(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.service.on_closed(connection)

    def before_send(self) -> None:
        if self.on_send:
            self.on_send()

    def kill(self) -> None:
        """Kill the coordinator: it sends nothing more, and all its files are closed."""
        self.alive = False
        self.on_send = None
        self.engine.close()
        for socket in list(self.sockets):
            socket.close()
        for connection in self.connections:
            for descriptor in connection.take_descriptors():
                os.close(descriptor)
        asyncio._set_running_loop(None)

    def end(self) -> None:
        """End the coordinator in order, as after SIGTERM, and discard its live settings."""
        self.engine.settings_override.remove()
        self.kill()
