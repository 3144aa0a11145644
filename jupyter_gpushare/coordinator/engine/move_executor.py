"""Requests to move clients, and the executor of the scheduler's commands on moves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from ...core.base.memory_use import NO_MEMORY
from ...core.interface import commands as cmd
from ...core.interface import events as ev
from ...core.state.model import Device, bytes_to_return
from ...units import format_size
from ...wire.page import BadPage
from ..clients.client_runtime import ClientRuntime
from ..gpu import simulated_driver
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
        self._on_end: dict[str, Callable[[str, str], None]] = {}  # of moves under way, by client
        self._requested: dict[str, Callable[[str, str], None]] = {}  # likewise, of moves that have not begun yet

    def request(self, client: str, device: str, on_end: Callable[[str, str], None]) -> None:
        """Move the client. Raises Refused, and then changes nothing.

        At the end of the move `on_end` is called with the device and the error ("": the client has moved).
        The request may end a move of the idle policy before the requested move begins.
        """
        self._requested[client] = on_end
        try:
            self._dispatch(ev.MoveRequested(client, device))
        finally:
            self._requested.pop(client, None)

    def is_requested(self, client: str) -> bool:
        """Return whether a requested move of the client is under way."""
        return client in self._on_end

    def execute(self, command: MoveCommand, runtime: ClientRuntime) -> None:
        match command:
            case cmd.PrepareMove():
                if on_end := self._requested.pop(command.client, None):
                    self._on_end[command.client] = on_end
                if command.hibernates and not runtime.kernels:
                    self._fail(runtime, command.device, "the client is no notebook, whose next cell would be known")
                    return
                try:
                    runtime.prepare_move(command.device, self._devices, hibernates=command.hibernates)
                except BadPage as error:
                    self._fail(runtime, command.device, str(error))
            case cmd.StartMove():
                if obstacle := self._obstacle(command, runtime):
                    self._fail(runtime, command.device, obstacle)
                elif command.hibernates or self._has_room(command, runtime):
                    left = self._own_device(runtime) if command.leaves_others or command.hibernates else ""
                    runtime.start_move(self._bytes_on(left, runtime) if left else 0)
                else:
                    self._on_consequence(ev.MoveDelayed(runtime.client_id))
            case cmd.FinishMove():
                done = "hibernated on" if command.hibernates else "returned to" if command.returns else "moved to"
                if command.error:
                    level = logging.INFO if command.hibernates else logging.WARNING
                    log.log(level, "client %s has not %s %s: %s", command.client, done, command.device, command.error)
                    runtime.cancel_move()
                else:
                    log.info("client %s has %s %s", command.client, done, command.device)
                if on_end := self._on_end.pop(command.client, None):
                    on_end(command.device, command.error)

    def _obstacle(self, command: cmd.StartMove, runtime: ClientRuntime) -> str:
        """Return a reason against the start; empty: there is none.

        Other clients of both devices must not allocate during the move, since the process may have to return.
        The return of a hibernated process needs figures of the room, which are known before its hibernation. A process
        that leaves other clients is hibernated if the driver does not restore it on the other device.
        """
        if command.returns:
            return ""
        if len(runtime.processes) != 1:
            return "another process of the client has started"
        may_hibernate = command.hibernates or command.leaves_others
        if may_hibernate and (problem := self._return_problem(self._own_device(runtime), runtime)):
            return problem
        devices = {command.device}.union(*(handle.devices for handle in runtime.processes.values()))
        if self._has_plain_neighbour(devices, runtime):
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

    def _return_problem(self, uuid: str, runtime: ClientRuntime) -> str:
        """Return why the process could not return to the device after a hibernation; empty: it could."""
        memory, used, own = self._devices[uuid].info.memory, self._memory_used(uuid), self._bytes_on(uuid, runtime)
        if used is None:
            return "the memory in use on the device is unknown without NVML"
        if not own:
            return "the driver shows no memory of the process on the device"
        others = [
            other.memory_by_device.get(uuid, NO_MEMORY) for other in self._runtimes.values() if other is not runtime
        ]
        stays = max(0, used - own - sum(use.movable for use in others))
        needed = bytes_to_return(own, memory)
        if needed + stays > memory:
            return f"its return would need {format_size(needed)}, and at most {format_size(memory - stays)} can be free"
        return ""

    def _own_device(self, runtime: ClientRuntime) -> str:
        (handle,) = runtime.processes.values()
        return handle.devices[0]

    def _has_plain_neighbour(self, devices: set[str], runtime: ClientRuntime) -> bool:
        return any(
            other is not runtime and other.uses_plain_mode and devices & {*other.memory_by_device}
            for other in self._runtimes.values()
        )

    def _has_room(self, command: cmd.StartMove, runtime: ClientRuntime) -> bool:
        """Return whether the device has room by the pages of all clients, which are newer than their reports.

        Programs that do not share the device count where the memory in use is known, as it must be for a return. A
        return beside a client of mode plain, which may allocate meanwhile, needs twice the room.
        """
        memory = self._devices[command.device].info.memory
        others = [other for other in self._runtimes.values() if other is not runtime]
        resident = sum(other.memory_by_device.get(command.device, NO_MEMORY).resident for other in others)
        resident += sum(other.context_memory_on(command.device) for other in others)
        used = self._memory_used(command.device)
        if command.returns and used is None:
            return False
        is_unsafe = command.returns and self._has_plain_neighbour({command.device}, runtime)
        return memory - max(resident, used or 0) >= command.needed * (2 if is_unsafe else 1)

    def _bytes_on(self, uuid: str, runtime: ClientRuntime) -> int:
        """Return the bytes of the client on the device, contexts included, by the driver's figures; 0: unknown.

        The figures for the client's processes are of the last call of `_memory_used`.
        """
        is_simulated = self._devices[uuid].info.simulated
        figures = simulated_driver.processes().get(uuid, {}) if is_simulated else self._nvml.processes(uuid) or {}
        sizes = [figures.get(handle.connection.pid) or 0 for handle in runtime.processes.values()]
        if 0 in sizes:  # in a container, whose processes have other pids there
            sizes = [
                handle.context_bytes and handle.context_bytes + handle.memory_use.resident
                for handle in runtime.processes.values()
            ]
        return 0 if 0 in sizes else sum(sizes)

    def _memory_used(self, uuid: str) -> int | None:
        """Return the bytes that all processes use on the device at present; None: unknown."""
        if self._devices[uuid].info.simulated:
            return sum(size or 0 for size in simulated_driver.processes().get(uuid, {}).values())
        self._nvml.sample()
        return self._nvml.memory_used(uuid)

    def _fail(self, runtime: ClientRuntime, device: str, error: str) -> None:
        for number, handle in runtime.processes.items():
            self._on_consequence(ev.MoveEnded(number, device, error, handle.hibernated))
