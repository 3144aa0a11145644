"""What the coordinator holds for each client: processes, page, kernels. The scheduler's orders end here."""

from __future__ import annotations

from ...config.traits import GpuShare
from ...core.base.quota import Quota
from ...core.interface.commands import Permit
from ...core.interface.launch_budget import BLOCKS, LaunchBudget
from ...core.state.model import Client, MemoryUse
from ...wire import page as pages
from ...wire.messages import Hello
from ..storage.state_database import hash_token
from ..transport.connection import Connection
from . import quota_codec
from .cell_quotas import CellQuotas
from .handshake import InvalidHandshake, open_pages
from .process_counters import ProcessCounters, WorkCounters, sum_work
from .process_handle import MAX_BYTES, ProcessHandle


class ClientRuntime:
    """One client: the page its processes share, its processes, its kernels."""

    def __init__(self, client: str, token: str) -> None:
        self.client_id = client
        self.token = token
        self.token_hash = hash_token(token)
        self.initial_state = (Quota(), False)  # quota and suspension before anybody here has said anything of them
        self.page: pages.ClientPage | None = None
        self.processes: dict[int, ProcessHandle] = {}
        self._ended_counters: list[ProcessCounters] = []  # of processes that have gone, together
        self.kernels: dict[Connection, dict[str, str]] = {}  # attached connections; open requests and their cells
        self.cell_quotas = CellQuotas()
        self._ended_work: dict[str, WorkCounters] = {}  # by device: theirs
        self.unconnected_since: float | None = None
        self.is_unregistered = False
        self.had_process = (
            False  # whether this coordinator has had a process of it: what its page says is from here then
        )
        self.is_simulated = False
        self._permit: Permit | None = None
        self._resident_target: int | None = None
        self.budget: LaunchBudget | None = None  # beside others
        self.may_prefetch = False  # its memory may come back while it waits

    @property
    def allocated(self) -> int:
        return sum(handle.allocated for handle in self.processes.values())

    @property
    def memory_use(self) -> MemoryUse:
        """Bytes of device memory of all its processes, as far as they say the truth."""
        parts = [handle.memory_use for handle in self.processes.values()]
        return MemoryUse(
            sum(p.allocated for p in parts), sum(p.resident for p in parts), sum(p.unmovable for p in parts)
        )

    def set_permit(self, permit: Permit) -> None:
        """Write a permit to the page of each process whose devices it covers; the others may not enter."""
        self._permit = permit
        for handle in self.processes.values():
            self.write_permit(handle)

    def write_permit(self, handle: ProcessHandle) -> None:
        """Write the client's permit to the page of one process, if there is one and the page does not have it."""
        permit = self._permit
        if permit is None or self.page is None:
            return
        may = permit.may and set(handle.devices) <= set(permit.devices)
        handle.write_permit(
            pages.Permit(
                turn=permit.turn,
                devices=self.page.bits(permit.devices),
                deadline_ns=int((permit.deadline or 0) * 1e9),
                epoch=permit.epoch,
                flags=may * pages.MAY | permit.relieved * pages.RELIEVED | permit.contended * pages.CONTENDED,
            )
        )

    def set_resident_target(self, target: int | None) -> None:
        """What the client may keep on the device, each process in proportion to what it has there."""
        self._resident_target = target
        resident = {handle: handle.memory_use.resident for handle in self.processes.values()}
        total = sum(resident.values())
        for handle, here in resident.items():
            part = pages.UNKNOWN
            if target is not None:
                part = target * here // total if total else target
            if handle.page.control.resident_target != part:
                handle.page.control.resident_target = part
                if handle.last_turn.phase == pages.OUT:
                    handle.ring()  # it makes room at once

    def set_prefetch_limit(self, room: int) -> None:
        """Up to `room` bytes of its memory may come back while it waits, shared by its processes in proportion to what
        each has away; 0: no more does.
        """
        away = {handle: handle.memory_use.allocated - handle.memory_use.resident for handle in self.processes.values()}
        missing = sum(away.values())
        for handle, part in away.items():
            most = handle.memory_use.resident + room * part // missing if room and part else 0
            handle.set_prefetch_limit(min(most, MAX_BYTES))

    def set_budget(self, budget: LaunchBudget | None) -> None:
        """What the client may launch: of its blocks, each process an equal part; of a device's time, each all of it."""
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
        """By device, of all processes that were ever connected here."""
        return sum_work([self._ended_work, *(handle.work for handle in self.processes.values())])

    @property
    def has_unmovable_memory(self) -> bool:
        """Whether one of its processes holds device memory that nothing can move."""
        return any(handle.memory_mode == "plain" for handle in self.processes.values())

    @property
    def is_stopped(self) -> bool:
        """Whether one of its processes is: then all would run, and none could end the turn."""
        return any(handle.is_stopped for handle in self.processes.values())

    def was_refused_entry(self) -> bool:
        """Return True if a process of it has been refused a turn since this was asked last."""
        return any([handle.was_refused_entry() for handle in self.processes.values()])

    @property
    def is_unconnected(self) -> bool:
        return not self.processes and not self.kernels

    def add_process(
        self, number: int, connection: Connection, hello: Hello, descriptors: list[int]
    ) -> tuple[ProcessHandle, int | None]:
        """Take a process in. Returns its handle, and the client page that it is to use instead of its own, if any.

        Takes ownership of `descriptors`. Raises BadHello and leaves everything as it was.
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
        replaces = known.inode != client_page.inode
        if known is not client_page:
            client_page.close()
        self.page = known
        self.processes[number] = handle
        self.is_simulated = self.is_simulated or hello.simulated
        return handle, known.descriptor if replaces else None

    def _assign_slot(self, handle: ProcessHandle) -> None:
        taken = {other.slot for other in self.processes.values()}
        slots = pages.layout()[1]["GPUSHARE_SLOTS"]
        wanted = handle.page.control.slot
        free = [slot for slot in range(slots) if slot not in taken]
        if not free:
            raise InvalidHandshake(f"client {self.client_id} has {slots} processes already, the most it may have")
        handle.slot = wanted if wanted in free else free[0]
        handle.page.control.slot = handle.slot

    def remove_process(self, number: int) -> None:
        """A process is gone: its bytes no longer count."""
        handle = self.processes.pop(number)
        if self.page:
            self.page.clear_slot(handle.slot)
        self._ended_counters = [ProcessCounters.combine([*self._ended_counters, ProcessCounters.read(handle.page)])]
        self._ended_work = sum_work([self._ended_work, handle.work])
        handle.page.close()
        self.set_budget(self.budget)  # the parts of the others are larger now
        if self.page and not self.processes:
            self.page.close()
            self.page = self._permit = None

    def detach(self) -> None:
        """Let go of everything without a trace in the pages: another coordinator will take over."""
        for handle in self.processes.values():
            handle.page.close()
        if self.page:
            self.page.close()

    def write_quota(
        self, client: Client, device_memory: int, quantum: float, idle_release: float, traits: GpuShare
    ) -> None:
        """Write the quota and the levels that do not change with turns to every page of the client."""
        memory = client.quota.memory or device_memory
        self.set_resident_target(self._resident_target)  # a process that has just joined, or was another coordinator's
        self.set_budget(self.budget)
        for handle in self.processes.values():
            control = handle.page.control
            quota_codec.encode_quota(control, client, device_memory)
            control.memory_total = min(memory, device_memory) if device_memory else memory
            control.quantum_ns = int(quantum * 1e9)
            control.idle_release_ns = int(idle_release * 1e9)
            control.window_ns = int(traits.inflight_window * 1e9)
            control.exempt_ns = int(traits.exempt_launches * 1e9)

    def write_levels(self, now_ns: int, backing: int | None, position: int, expected_wait: float | None) -> None:
        """What is written every second."""
        for handle in self.processes.values():
            control = handle.page.control
            control.heartbeat_ns = now_ns
            control.memory_backing = pages.UNKNOWN if backing is None else backing
            control.queue_position = position
            control.expected_wait_ns = int((expected_wait or 0) * 1e9)
