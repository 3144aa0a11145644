"""What the daemon holds for each client: processes, page, kernels. The scheduler's orders end here."""

from __future__ import annotations

from ..config.traits import GpuShare
from ..core.commands import Permit
from ..core.model import Client, Held
from ..core.quota import Quota
from ..core.throttle.budget import BLOCKS, Budget
from ..wire import page as pages
from ..wire.messages import Hello
from . import quotabits
from .brought import BadHello, brought
from .cell_quotas import CellQuotas
from .journal_file import hashed
from .measures import Measures, Work, summed
from .peer import Peer
from .ports import MAX_BYTES, ProcessPort


class Member:
    """One client: the page its processes share, its processes, its kernels."""

    def __init__(self, client: str, token: str) -> None:
        self.client = client
        self.token = token
        self.hashed_token = hashed(token)
        self.began = (Quota(), False)  # quota and suspension before anybody here has said anything of them
        self.page: pages.ClientPage | None = None
        self.processes: dict[int, ProcessPort] = {}
        self._ended: list[Measures] = []  # of processes that have gone, together
        self.kernels: dict[Peer, dict[str, str]] = {}  # attached connections; open requests and their cells
        self.cell_quotas = CellQuotas()
        self._done: dict[str, Work] = {}  # by device: theirs
        self.alone_since: float | None = None
        self.forgotten = False
        self.met = False  # whether this coordinator has had a process of it: what its page says is from here then
        self.simulated = False
        self._permit: Permit | None = None
        self._resident: int | None = None
        self.budget: Budget | None = None  # beside others
        self.comes_ahead = False  # its memory may come back while it waits

    @property
    def allocated(self) -> int:
        return sum(port.allocated for port in self.processes.values())

    @property
    def held(self) -> Held:
        """Bytes of device memory of all its processes, as far as they say the truth."""
        parts = [port.held for port in self.processes.values()]
        return Held(sum(p.allocated for p in parts), sum(p.resident for p in parts), sum(p.pinned for p in parts))

    def set_permit(self, permit: Permit) -> None:
        """Write a permit to the page of each process whose devices it covers; the others may not enter."""
        self._permit = permit
        for port in self.processes.values():
            self.write_permit(port)

    def write_permit(self, port: ProcessPort) -> None:
        """Write the client's permit to the page of one process, if there is one and the page does not have it."""
        permit = self._permit
        if permit is None or self.page is None:
            return
        may = permit.may and set(port.devices) <= set(permit.devices)
        port.permit(
            pages.Permit(
                turn=permit.turn,
                devices=self.page.bits(permit.devices),
                deadline_ns=int((permit.deadline or 0) * 1e9),
                epoch=permit.epoch,
                flags=may * pages.MAY | permit.relieved * pages.RELIEVED | permit.contended * pages.CONTENDED,
            )
        )

    def set_resident(self, target: int | None) -> None:
        """What the client may keep on the device, each process in proportion to what it has there."""
        self._resident = target
        resident = {port: port.held.resident for port in self.processes.values()}
        total = sum(resident.values())
        for port, here in resident.items():
            part = pages.UNKNOWN
            if target is not None:
                part = target * here // total if total else target
            if port.page.orders.resident_target != part:
                port.page.orders.resident_target = part
                if port.turn.phase == pages.OUT:
                    port.ring()  # it makes room at once

    def restore_ahead(self, room: int) -> None:
        """Up to `room` bytes of its memory may come back while it waits, shared by its processes in proportion to what
        each has away; 0: no more does.
        """
        away = {port: port.held.allocated - port.held.resident for port in self.processes.values()}
        missing = sum(away.values())
        for port, part in away.items():
            most = port.held.resident + room * part // missing if room and part else 0
            port.restore_ahead(min(most, MAX_BYTES))

    def set_budget(self, budget: Budget | None) -> None:
        """What the client may launch: of its blocks, each process an equal part; of a device's time, each all of it."""
        self.budget = budget
        rate, unit = 0, pages.BLOCKS
        if budget and budget.unit == BLOCKS:
            rate = int(budget.rate) // max(1, len(self.processes)) or 1
        elif budget:
            rate, unit = int(budget.rate * 1e9) or 1, pages.TIME
        for port in self.processes.values():
            orders = port.page.orders
            if (orders.budget_rate, orders.budget_unit) != (rate, unit):
                orders.budget_rate, orders.budget_unit = rate, unit
                port.ring()

    @property
    def measures(self) -> Measures:
        parts = [Measures.read(port.page) for port in self.processes.values()]
        return Measures.together([*self._ended, *parts] or [Measures()])

    @property
    def work(self) -> dict[str, Work]:
        """By device, of all processes that were ever connected here."""
        return summed([self._done, *(port.work for port in self.processes.values())])

    @property
    def is_plain(self) -> bool:
        """Whether one of its processes holds device memory that nothing can move."""
        return any(port.memory_mode == "plain" for port in self.processes.values())

    @property
    def stopped(self) -> bool:
        """Whether one of its processes is: then all would run, and none could end the turn."""
        return any(port.stopped for port in self.processes.values())

    def tries_in_vain(self) -> bool:
        """Return True if a process of it has been refused a turn since this was asked last."""
        return any([port.tries_in_vain() for port in self.processes.values()])

    @property
    def deserted(self) -> bool:
        return not self.processes and not self.kernels

    def admit(self, number: int, peer: Peer, hello: Hello, descriptors: list[int]) -> tuple[ProcessPort, int | None]:
        """Take a process in. Returns its port, and the client page that it is to use instead of its own, if any.

        Takes ownership of `descriptors`. Raises BadHello and leaves everything as it was.
        """
        page, client_page = brought(hello, descriptors)
        port = ProcessPort(number, peer, page, hello)
        known = self.page or client_page
        try:
            for device in hello.devices:
                known.add_device(device.uuid)
            self._assign_slot(port)
        except (pages.BadPage, BadHello) as error:
            page.close()
            client_page.close()
            raise BadHello(str(error)) from error
        replaces = known.inode != client_page.inode
        if known is not client_page:
            client_page.close()
        self.page = known
        self.processes[number] = port
        self.simulated = self.simulated or hello.simulated
        return port, known.descriptor if replaces else None

    def _assign_slot(self, port: ProcessPort) -> None:
        taken = {other.slot for other in self.processes.values()}
        slots = pages.layout()[1]["GPUSHARE_SLOTS"]
        wanted = port.page.orders.slot
        free = [slot for slot in range(slots) if slot not in taken]
        if not free:
            raise BadHello(f"client {self.client} has {slots} processes already, the most it may have")
        port.slot = wanted if wanted in free else free[0]
        port.page.orders.slot = port.slot

    def remove(self, number: int) -> None:
        """A process is gone: its bytes no longer count."""
        port = self.processes.pop(number)
        if self.page:
            self.page.clear_slot(port.slot)
        self._ended = [Measures.together([*self._ended, Measures.read(port.page)])]
        self._done = summed([self._done, port.work])
        port.page.close()
        self.set_budget(self.budget)  # the parts of the others are larger now
        if self.page and not self.processes:
            self.page.close()
            self.page = self._permit = None

    def abandon(self) -> None:
        """Let go of everything without a trace in the pages: another coordinator will take over."""
        for port in self.processes.values():
            port.page.close()
        if self.page:
            self.page.close()

    def write_limits(
        self, client: Client, device_memory: int, quantum: float, idle_release: float, traits: GpuShare
    ) -> None:
        """Write the quota and the levels that do not change with turns to every page of the client."""
        memory = client.quota.memory or device_memory
        self.set_resident(self._resident)  # a process that has just joined, or was another coordinator's
        self.set_budget(self.budget)
        for port in self.processes.values():
            orders = port.page.orders
            quotabits.write(orders, client, device_memory)
            orders.memory_total = min(memory, device_memory) if device_memory else memory
            orders.quantum_ns = int(quantum * 1e9)
            orders.idle_release_ns = int(idle_release * 1e9)
            orders.window_ns = int(traits.inflight_window * 1e9)
            orders.exempt_ns = int(traits.exempt_launches * 1e9)

    def write_levels(self, now_ns: int, backing: int | None, position: int, expected_wait: float | None) -> None:
        """What is written every second."""
        for port in self.processes.values():
            orders = port.page.orders
            orders.heartbeat_ns = now_ns
            orders.memory_backing = pages.UNKNOWN if backing is None else backing
            orders.queue_position = position
            orders.expected_wait_ns = int((expected_wait or 0) * 1e9)
