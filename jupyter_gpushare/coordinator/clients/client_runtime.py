"""State of one client in the coordinator: its client page, processes, kernels, cell quotas and sums of counters.

`ClientRuntime` also writes the control blocks of the client's processes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from ...config.traits import GpuShare
from ...core.base.memory_use import NO_MEMORY, MemoryUse
from ...core.base.quota import Quota
from ...core.interface.commands import Permit
from ...core.interface.launch_budget import BLOCKS, LaunchBudget
from ...core.state.model import Client
from ...wire import page as pages
from ...wire.client import encode
from ...wire.messages import CancelMove, Hello, MemoryShortage, PrepareMove, RoomRefused, StartMove
from ..storage.state_database import hash_token
from ..transport.connection import Connection
from . import quota_codec
from .cell_quotas import CellQuotas
from .context_memory import ContextMemory
from .handshake import InvalidHandshake, open_pages
from .limit_times import LimitTimes
from .process_counters import ProcessCounters, WorkCounters, sum_work
from .process_handle import MAX_BYTES, ProcessHandle

_MAX_CONTEXT_MEMORIES = 64  # because a client may start any number of short processes


class ClientRuntime:
    """Client page, processes and kernels of one client."""

    def __init__(self, client: str, token: str) -> None:
        self.client_id = client
        self.token = token
        self.token_hash = hash_token(token)
        self.initial_state = (Quota(), False)  # quota and suspension at the registration with this coordinator
        self.page: pages.ClientPage | None = None
        self.processes: dict[int, ProcessHandle] = {}
        self._context_memories: dict[int, ContextMemory] = {}  # by pid: of processes that may connect again
        self._ended_counters: list[ProcessCounters] = []  # sum of the processes that have ended; at most one entry
        self.kernels: dict[Connection, dict[str, str]] = {}  # cell ids by open request, for each attached connection
        self._informed_kernels: set[Connection] = set()  # kernels with the report that memory is short
        self.cell_quotas = CellQuotas()
        self._ended_work: dict[str, WorkCounters] = {}  # by device: sum of the processes that have ended
        self.unconnected_since: float | None = None
        self.is_unregistered = False
        self.had_process = False  # if True, this coordinator has written the quota in the pages
        self.is_simulated = False
        self._permit: Permit | None = None
        self._moving_to = ""  # the device of a move or hibernation under way
        self._resident_targets: dict[str, int] = {}  # by device; a device without an entry keeps all memory
        self.turn_limit: int | None = None
        self.budget: LaunchBudget | None = None  # only while the client is colocated
        self.limit_times = LimitTimes()
        self.prefetch_devices: set[str] = set()  # devices whose memory may come back ahead of the next turn

    @property
    def allocated(self) -> int:
        return sum(handle.allocated for handle in self.processes.values())

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the devices have worked for its processes."""
        return self.counters.gpu_ns / 1e9

    @property
    def memory_use(self) -> MemoryUse:
        """Device memory of all processes, as the processes report it."""
        return reduce(MemoryUse.plus, (handle.memory_use for handle in self.processes.values()), NO_MEMORY)

    @property
    def memory_by_device(self) -> dict[str, MemoryUse]:
        """The part of that memory on each device."""
        found: dict[str, MemoryUse] = {}
        for handle in self.processes.values():
            for uuid, use in handle.memory_by_device.items():
                found[uuid] = found.get(uuid, NO_MEMORY).plus(use)
        return found

    @property
    def context_memory(self) -> int:
        """Context memory of all processes, as far as it is known."""
        return sum(handle.context_bytes for handle in self.processes.values())

    def context_memory_on(self, device: str) -> int:
        """Return the context memory on one device. That of a process counts in equal parts on all of its devices."""
        handles = [handle for handle in self.processes.values() if device in handle.devices]
        return sum(handle.context_bytes // len(handle.devices) for handle in handles)

    def report_memory_shortage(self, is_short: bool) -> None:
        """Report a memory shortage, or its end, to each attached kernel that has no such report."""
        informed = set(self.kernels) if is_short else set()
        for connection in self.kernels.keys() & (informed ^ self._informed_kernels):
            connection.send(encode(MemoryShortage(is_short=is_short)))
        self._informed_kernels = informed

    def set_permit(self, permit: Permit) -> None:
        """Write a permit to the page of each process.

        MAY is set only if the permit covers the devices of the process, or the device that the client moves to.
        """
        self._permit = permit
        for handle in self.processes.values():
            self.write_permit(handle)

    def write_permit(self, handle: ProcessHandle) -> None:
        """Write the client's permit to the page of one process, if there is one and the page does not have it."""
        permit = self._permit
        if permit is None or self.page is None:
            return
        may = permit.may and (set(handle.devices) <= set(permit.devices) or self._moving_to in permit.devices)
        handle.write_permit(
            pages.Permit(
                turn=permit.turn,
                devices=self.page.bits(permit.devices),
                deadline_ns=int((permit.deadline or 0) * 1e9),
                epoch=permit.epoch,
                flags=may * pages.MAY | permit.relieved * pages.RELIEVED | permit.contended * pages.CONTENDED,
            )
        )

    def prepare_move(self, device: str, host_devices: Iterable[str], *, hibernates: bool = False) -> None:
        """Let the processes wait for a turn that includes the device, and move there, or hibernate, at its end."""
        self._moving_to = device
        if self.page:
            self.page.add_device(device)
        others = [uuid for uuid in host_devices if uuid != device]
        self._send(PrepareMove(devices=[device, *others], hibernates=hibernates))

    def start_move(self, size: int = 0) -> None:
        """Let the move start. `size`: the bytes that leave the device with a process that hibernates."""
        self._send(StartMove(bytes=size))

    def cancel_move(self) -> None:
        self._moving_to = ""
        self._send(CancelMove())

    def refuse_room(self, reason: str) -> None:
        """End the waits at the gates of the processes by an error, with `reason` for the user."""
        self._send(RoomRefused(reason=reason))

    def _send(self, message: PrepareMove | StartMove | CancelMove | RoomRefused) -> None:
        for handle in self.processes.values():
            handle.connection.send(encode(message))

    def set_resident_target(self, device: str, target: int | None) -> None:
        """Divide the client's resident target on a device, in bytes, among its processes; None: all memory may stay.

        The processes get parts in proportion to their resident memory there. The target includes context memory, and
        the targets of processes do not.
        """
        if target is None:
            self._resident_targets.pop(device, None)
        else:
            self._resident_targets[device] = target
        resident = {handle: use.resident for handle, use in self._uses_on(device).items()}
        total = sum(resident.values())
        for handle, size in resident.items():
            process_target = pages.UNKNOWN
            if target is not None:
                allocations = max(0, target - self.context_memory_on(device))
                process_target = allocations * size // total if total else allocations
            handle.set_resident_target(device, process_target)

    def set_turn_limit(self, limit: int | None) -> None:
        """Divide the turn limit of the client, in bytes, among its processes; None: all memory may be resident.

        The processes get parts in proportion to their allocated memory. The limit includes context memory, and the
        limits of processes do not.
        """
        self.turn_limit = limit
        allocated = {handle: handle.allocated for handle in self.processes.values()}
        total = sum(allocated.values())
        for handle, size in allocated.items():
            part = 0
            if limit is not None:
                allocations = max(0, limit - self.context_memory)
                part = max(1, allocations * size // total if total else allocations // len(allocated))
            handle.set_turn_limit(part)

    def _uses_on(self, device: str) -> dict[ProcessHandle, MemoryUse]:
        """Return the processes that use the device, with one sample of their memory there."""
        return {
            handle: handle.memory_by_device[device] for handle in self.processes.values() if device in handle.devices
        }

    def set_max_evicted(self, limit: int | None) -> None:
        """Let the processes have up to `limit` bytes off the devices in all; None: any number.

        The bytes that may still leave are divided in proportion to the memory that is on the device, or comes there.
        """
        uses = {handle: handle.memory_use for handle in self.processes.values()}
        left = max(0, (limit or 0) - sum(use.evicted_bytes for use in uses.values()))
        total = sum(use.resident + use.unmade for use in uses.values())
        for handle, use in uses.items():
            part = left * (use.resident + use.unmade) // total if total else left // len(uses)
            handle.set_max_evicted(pages.UNKNOWN if limit is None else min(use.evicted_bytes + part, MAX_BYTES))

    def set_prefetch_limit(self, device: str, room: int) -> None:
        """Let the processes prefetch up to `room` bytes on a device, in proportion to their evicted memory; 0: none."""
        uses = self._uses_on(device)
        total = sum(use.evicted_bytes for use in uses.values())
        for handle, use in uses.items():
            size = use.evicted_bytes
            limit = use.resident + room * size // total if room and size else 0
            handle.set_prefetch_limit(device, min(limit, MAX_BYTES))

    def set_budget(self, budget: LaunchBudget | None) -> None:
        """Write the launch budget to the pages.

        Each process gets an equal part of a budget in blocks, and the whole of a budget in device seconds.
        """
        self.budget = budget
        rate, unit = 0, pages.BLOCKS
        if budget and budget.unit == BLOCKS:
            rate = int(budget.rate) // max(1, len(self.processes)) or 1
        elif budget:
            rate, unit = int(budget.rate * 1e9) or 1, pages.TIME
        for handle in self.processes.values():
            control = handle.page.control
            if (control.budget_rate, control.budget_unit) != (rate, unit):
                control.budget_rate, control.budget_unit = rate, unit
                handle.ring()

    @property
    def counters(self) -> ProcessCounters:
        parts = [ProcessCounters.read(handle.page) for handle in self.processes.values()]
        return ProcessCounters.combine([*self._ended_counters, *parts] or [ProcessCounters()])

    @property
    def work(self) -> dict[str, WorkCounters]:
        """Work by device of all processes that have been connected to this coordinator."""
        return sum_work([self._ended_work, *(handle.work for handle in self.processes.values())])

    @property
    def uses_plain_mode(self) -> bool:
        """Return whether a process of the client has memory mode `plain`, whose memory cannot be evicted."""
        return any(handle.memory_mode == "plain" for handle in self.processes.values())

    @property
    def uses_only_unified_mode(self) -> bool:
        """Return whether all memory of the client is in mode `unified`, so that its work reaches evicted memory."""
        return bool(self.processes) and all(handle.memory_mode == "unified" for handle in self.processes.values())

    @property
    def is_stopped(self) -> bool:
        """Return whether a process of the client is stopped. A stopped process cannot end a turn."""
        return any(handle.is_stopped for handle in self.processes.values())

    def was_refused_entry(self) -> bool:
        """Return True if a turn lock has refused a process of the client since the last call."""
        return any([handle.was_refused_entry() for handle in self.processes.values()])

    @property
    def is_unconnected(self) -> bool:
        return not self.processes and not self.kernels

    def add_process(
        self, number: int, connection: Connection, hello: Hello, descriptors: list[int]
    ) -> tuple[ProcessHandle, int | None]:
        """Add a process.

        Return its handle and, if it must use another client page than its own, the descriptor of that page.
        Takes ownership of `descriptors`. Raises InvalidHandshake and changes nothing then.
        """
        page, client_page = open_pages(hello, descriptors)
        handle = ProcessHandle(number, connection, page, hello)
        known = self.page or client_page
        try:
            for device in hello.devices:
                known.add_device(device.uuid)
            self._assign_slot(handle)
        except (pages.BadPage, InvalidHandshake) as error:
            page.close()
            client_page.close()
            raise InvalidHandshake(str(error)) from error
        handle.context_memory = self._context_memories.pop(connection.pid, handle.context_memory)
        replaces = known.inode != client_page.inode
        if known is not client_page:
            client_page.close()
        self.page = known
        self.processes[number] = handle
        self._moving_to = ""
        self.is_simulated = self.is_simulated or hello.simulated
        return handle, known.descriptor if replaces else None

    def _assign_slot(self, handle: ProcessHandle) -> None:
        taken = {other.slot for other in self.processes.values()}
        slots = pages.layout()[1]["GPUSHARE_SLOTS"]
        previous = handle.page.control.slot
        free = [slot for slot in range(slots) if slot not in taken]
        if not free:
            raise InvalidHandshake(f"client {self.client_id} has {slots} processes already, the most it may have")
        handle.slot = previous if previous in free else free[0]
        handle.page.control.slot = handle.slot

    def remove_process(self, number: int) -> None:
        """Remove a process whose connection has ended, and add its counters to the client's totals."""
        handle = self.processes.pop(number)
        self._context_memories[handle.connection.pid] = handle.context_memory
        if len(self._context_memories) > _MAX_CONTEXT_MEMORIES:
            del self._context_memories[next(iter(self._context_memories))]
        if self.page:
            self.page.clear_slot(handle.slot)
        self._ended_counters = [ProcessCounters.combine([*self._ended_counters, ProcessCounters.read(handle.page)])]
        self._ended_work = sum_work([self._ended_work, handle.work])
        handle.page.close()
        self.set_budget(self.budget)  # fewer processes share it now
        if self.page and not self.processes:
            self.page.close()
            self.page = self._permit = None

    def detach(self) -> None:
        """Close all pages without a change in them, so that the next coordinator finds the client's state there."""
        for handle in self.processes.values():
            handle.page.close()
        if self.page:
            self.page.close()

    def write_quota(
        self, client: Client, device_memory: int, quantum: float, idle_release: float, traits: GpuShare
    ) -> None:
        """Write the quota, the settings, the resident target and the launch budget to every page of the client."""
        memory = client.quota.memory or device_memory
        for uuid in {uuid for handle in self.processes.values() for uuid in handle.devices}:
            self.set_resident_target(uuid, self._resident_targets.get(uuid))  # for a process that has just joined
        self.set_budget(self.budget)
        self.set_turn_limit(self.turn_limit)
        for handle in self.processes.values():
            control = handle.page.control
            quota_codec.encode_quota(control, client, device_memory)
            control.memory_total = min(memory, device_memory) if device_memory else memory
            control.quantum_ns = int(quantum * 1e9)
            control.idle_release_ns = int(idle_release * 1e9)
            control.window_ns = int(traits.inflight_window * 1e9)
            control.exempt_ns = int(traits.exempt_launches * 1e9)

    def write_levels(
        self, now_ns: int, backing: int | None, context_bytes: int, position: int, expected_wait: float | None
    ) -> None:
        """Write the levels that change every second."""
        for handle in self.processes.values():
            control = handle.page.control
            control.heartbeat_ns = now_ns
            control.memory_backing = pages.UNKNOWN if backing is None else backing
            control.context_bytes = context_bytes
            control.queue_position = position
            control.expected_wait_ns = int((expected_wait or 0) * 1e9)
