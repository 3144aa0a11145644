"""Requests to move clients, and the executor of the scheduler's commands on moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...core.base.errors import Refused
from ...core.base.memory_use import NO_MEMORY
from ...core.interface import commands as cmd
from ...core.interface import events as ev
from ...core.state.model import Device
from ...units import format_size
from ...wire.page import BadPage
from ..clients.client_runtime import ClientRuntime
from ..gpu.nvml import Nvml
from ..host.host_memory import available_bytes
from ..monitoring.host_backing import HostBackingSampler

log = logging.getLogger(__name__)

MoveCommand = cmd.PrepareMove | cmd.StartMove | cmd.FinishMove


class MoveExecutor:
    """Executor of the commands on moves. `on_consequence` receives the events that a command causes."""

    def __init__(
        self,
        devices: Mapping[str, Device],
        runtimes: Mapping[str, ClientRuntime],
        host_backing: HostBackingSampler,
        nvml: Nvml,
        dispatch: Callable[[ev.Event], None],
        on_consequence: Callable[[ev.Event], None],
    ) -> None:
        self._devices = devices
        self._runtimes = runtimes
        self._host_backing = host_backing
        self._nvml = nvml
        self._dispatch = dispatch
        self._on_consequence = on_consequence
        self._on_end: dict[str, Callable[[str, str], None]] = {}  # by client

    def request(self, client: str, device: str, on_end: Callable[[str, str], None]) -> None:
        """Move the client. Raises Refused, and then changes nothing.

        At the end of the move `on_end` is called with the device and the error ("": the client has moved).
        """
        before = self._on_end.get(client)
        self._on_end[client] = on_end  # first, because the move may end at once
        try:
            self._dispatch(ev.MoveRequested(client, device))
        except Refused:
            self._on_end.pop(client)
            if before:
                self._on_end[client] = before
            raise

    def execute(self, command: MoveCommand, runtime: ClientRuntime) -> None:
        match command:
            case cmd.PrepareMove():
                try:
                    runtime.prepare_move(command.device, self._devices)
                except BadPage as error:
                    self._fail(runtime, command.device, str(error))
            case cmd.StartMove():
                if obstacle := self._obstacle(command, runtime):
                    self._fail(runtime, command.device, obstacle)
                elif self._has_room(command, runtime):
                    runtime.start_move()
                else:
                    self._on_consequence(ev.MoveDelayed(runtime.client_id))
            case cmd.FinishMove():
                if command.error:
                    log.warning("client %s has not moved to %s: %s", command.client, command.device, command.error)
                    runtime.cancel_move()
                else:
                    log.info("client %s has moved to %s", command.client, command.device)
                if on_end := self._on_end.pop(command.client, None):
                    on_end(command.device, command.error)

    def _obstacle(self, command: cmd.StartMove, runtime: ClientRuntime) -> str:
        """Return a reason against the start; empty: there is none.

        Other clients of both devices must not allocate during the move, since the process may have to return.
        """
        devices = {command.device}.union(*(handle.devices for handle in runtime.processes.values()))
        for other in self._runtimes.values():
            if other is not runtime and other.uses_plain_mode and devices & {*other.memory_by_device}:
                return "a client of mode plain, which allocates memory without a turn, is on one of the devices"
        backing, use = self._host_backing.of_client(runtime.client_id), runtime.memory_use
        bound = None if backing.max_evicted is None else max(0, backing.max_evicted - use.evicted_bytes)
        room = min((size for size in (available_bytes(), bound) if size is not None), default=command.copied)
        if command.copied > room:
            return (
                f"the driver copies {format_size(command.copied)} to the host meanwhile, "
                f"which has {format_size(room)} for the client"
            )
        return ""

    def _has_room(self, command: cmd.StartMove, runtime: ClientRuntime) -> bool:
        """Return whether the device has room by the pages of all clients, which are newer than their reports.

        Programs that do not share the device count where NVML has a figure.
        """
        memory = self._devices[command.device].info.memory
        others = [other for other in self._runtimes.values() if other is not runtime]
        resident = sum(other.memory_by_device.get(command.device, NO_MEMORY).resident for other in others)
        resident += sum(other.context_memory_on(command.device) for other in others)
        self._nvml.sample()
        used = max(resident, self._nvml.memory_used(command.device) or 0)
        return memory - used >= command.needed

    def _fail(self, runtime: ClientRuntime, device: str, error: str) -> None:
        for number in runtime.processes:
            self._on_consequence(ev.MoveEnded(number, device, error))
