"""One process under our orders: what its page reports, and what is said to it there."""

from __future__ import annotations

from ..core.grants import EPOCHS
from ..core.model import Held
from ..core.quota import Quota
from ..wire import page as pages
from ..wire.messages import DOORBELL, Hello
from . import quotabits
from .measures import Work
from .peer import Peer

MAX_BYTES = 1 << 50  # nobody has more; what a process reports beyond it is nonsense


class ProcessPort:
    """A process by its page and its connection; `number` is what the scheduler calls it."""

    def __init__(self, number: int, peer: Peer, page: pages.Page, hello: Hello) -> None:
        self.number = number
        self.peer = peer
        self.page = page
        self.devices = tuple(sorted({device.uuid for device in hello.devices}))
        self.slot = 0
        self._before = Work.read(page)  # done with an earlier coordinator, or none

    @property
    def work(self) -> dict[str, Work]:
        """By device, since it said hello."""
        return Work.read(self.page).since(self._before).on(self.devices)

    @property
    def allocated(self) -> int:
        return min(int(self.page.report.allocated), MAX_BYTES)

    @property
    def short(self) -> int:
        """Bytes that it could not have because the device is full."""
        return min(int(self.page.report.short_bytes), MAX_BYTES)

    @property
    def asks(self) -> int | None:
        """The number of its request for room, if that has no answer yet.

        The number is read first: what is read of the page afterwards is of this request, or of a later one, which
        does not take the answer for its own.
        """
        number = int(self.page.report.short_seq)
        return number if self.short and int(self.page.orders.no_room) != number else None

    @property
    def held(self) -> Held:
        report = self.page.report
        allocated = self.allocated
        resident = min(int(report.resident), allocated)
        return Held(allocated, resident, min(int(report.pinned), resident))

    @property
    def memory_mode(self) -> str:
        """ "" if it is too old to say."""
        return pages.memory_mode(int(self.page.report.memory_mode))

    @property
    def knows_resident(self) -> bool:
        """Whether it knows what of its memory is on the device."""
        report = self.page.report
        return pages.knows_resident(int(report.memory_mode), int(report.asked_managed))

    @property
    def host_pinned(self) -> int:
        return min(int(self.page.report.host_pinned), MAX_BYTES)

    @property
    def host_pageable(self) -> int:
        return min(int(self.page.report.host_pageable), MAX_BYTES)

    @property
    def quota(self) -> Quota | None:
        """The quota that an earlier coordinator wrote to this page, if it is one."""
        return quotabits.read(self.page.orders)

    @property
    def suspended(self) -> bool:
        """Whether a person has said so, under an earlier coordinator or this one."""
        return quotabits.is_suspended(self.page.orders)

    @property
    def suspended_by_policy(self) -> bool:
        """Whether it is, or was under an earlier coordinator, for being idle."""
        return quotabits.is_suspended_by_policy(self.page.orders)

    @property
    def stopped(self) -> bool:
        """By a signal or a debugger: it neither takes a turn nor ends one."""
        try:
            with open(f"/proc/{self.peer.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    @property
    def drained_epoch(self) -> int:
        """The last one of which it has drained, as far as it says the truth."""
        return int(self.page.report.drained_epoch) % EPOCHS

    @property
    def drained(self) -> bool:
        """Whether it has, of the closing of its gate."""
        return self.page.gate == (False, self.drained_epoch)

    @property
    def relays(self) -> bool:
        return int(self.page.view.header.version) >= 2

    def open(self, epoch: int, contended: bool, step: bool = False) -> None:
        """Where the process has opened its gate by itself, with this very epoch, this changes nothing."""
        orders = self.page.orders
        orders.deadline_ns = 0  # the last turn's would close it at once
        orders.hand_on = 0
        orders.contended = contended  # from the first call on
        self.page.open_gate(epoch, step)
        orders.carry = 0
        self.peer.send(DOORBELL)

    def name_next(self, epoch: int) -> None:
        orders = self.page.orders
        orders.deadline_ns = 0
        orders.contended = 1  # whoever has to go now comes again, most likely
        orders.carry = epoch
        self.peer.send(DOORBELL)

    def unname(self) -> None:
        """Should it have been faster, its turn ends at once: nobody would."""
        epoch, self.page.orders.carry = self.page.orders.carry, 0
        if not epoch:
            return
        self.peer.send(DOORBELL)
        if self.page.gate == (True, epoch):
            self.close(epoch)

    def restore_ahead(self, most: int) -> None:
        """Up to `most` bytes of this process may be on the device while its gate is closed; 0: no more comes back.

        A process of a page version before 7 doesn't look there.
        """
        if self.page.orders.restore_ahead != most:
            self.page.orders.restore_ahead = most
            self.peer.send(DOORBELL)

    def close(self, epoch: int) -> None:
        self.page.close_gate(epoch)
        self.peer.send(DOORBELL)

    def orders(self, contended: bool, deadline: float | None) -> None:
        """Levels of a running turn. The agent ends it at the deadline by itself."""
        orders = self.page.orders
        deadline_ns = int(deadline * 1e9) if deadline is not None else 0
        if orders.contended != contended or orders.deadline_ns != deadline_ns:
            orders.contended = contended
            orders.deadline_ns = deadline_ns
            self.peer.send(DOORBELL)
