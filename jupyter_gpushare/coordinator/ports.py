"""One process under our orders: what its page reports, and what is said to it there."""

from __future__ import annotations

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
        self.turn = pages.Turn()  # as the page said when it was looked at last
        self.levels = (False, False, int(page.report.restored))  # idle, evicting, how often restored: then
        self.looked_at = 0.0
        self._short_seq = 0
        self._tries = 0  # when the permit was written, or the last time that they were asked for
        self._permit = pages.Permit()
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
        """The mode by its name; empty if the process has not set it."""
        return pages.memory_mode(int(self.page.report.memory_mode))

    @property
    def knows_resident(self) -> bool:
        """Whether it knows what of its memory is on the device."""
        report = self.page.report
        return pages.is_resident_exact(int(report.memory_mode), int(report.asked_managed))

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

    def ring(self) -> None:
        """Let the process look at its page."""
        self.peer.send(DOORBELL)

    def permit(self, permit: pages.Permit) -> None:
        if permit != self._permit:
            if permit.epoch != self._permit.epoch:
                self.tries_in_vain()
            self._permit = permit
            self.page.write_permit(permit)
            self.ring()

    def tries_in_vain(self) -> bool:
        """Return True if the process has been refused a turn since it was asked last, or given a permit."""
        turn = self.page.read_turn()
        if turn is None or turn.tries == self._tries:
            return False
        self._tries = turn.tries
        return True

    def became_short(self) -> bool:
        """Return True if the process has asked for room, or no longer does, since this was asked last."""
        before, self._short_seq = self._short_seq, int(self.page.report.short_seq)
        return before != self._short_seq

    def interrupt(self) -> None:
        self.page.interrupt()
        self.ring()

    def restore_ahead(self, most: int) -> None:
        """Up to `most` bytes of this process may be on the device while its gate is closed; 0: no more comes back."""
        if self.page.orders.restore_ahead != most:
            self.page.orders.restore_ahead = most
            self.ring()
