"""One process under our orders: what its page reports, and what is said to it there."""

from __future__ import annotations

from ...core.base.quota import Quota
from ...core.state.model import MemoryUse
from ...wire import page as pages
from ...wire.messages import DOORBELL, Hello
from ..transport.connection import Connection
from . import quota_codec
from .process_counters import WorkCounters

MAX_BYTES = 1 << 50  # nobody has more; what a process reports beyond it is nonsense


class ProcessHandle:
    """A process by its page and its connection; `number` is what the scheduler calls it."""

    def __init__(self, number: int, connection: Connection, page: pages.Page, hello: Hello) -> None:
        self.number = number
        self.connection = connection
        self.page = page
        self.devices = tuple(sorted({device.uuid for device in hello.devices}))
        self.slot = 0
        self.last_turn = pages.Turn()  # as the page said when it was looked at last
        self.last_levels = (False, False, int(page.report.restored))  # idle, evicting, how often restored: then
        self.sampled_at = 0.0
        self._unmet_request_seq = 0
        self._refused_entries = 0  # when the permit was written, or the last time that they were asked for
        self._permit = pages.Permit()
        self._initial_work = WorkCounters.read(page)  # done with an earlier coordinator, or none

    @property
    def work(self) -> dict[str, WorkCounters]:
        """By device, since it said hello."""
        return WorkCounters.read(self.page).since(self._initial_work).per_device(self.devices)

    @property
    def allocated(self) -> int:
        return min(int(self.page.report.allocated), MAX_BYTES)

    @property
    def unmet_bytes(self) -> int:
        """Bytes that it could not have because the device is full."""
        return min(int(self.page.report.unmet_bytes), MAX_BYTES)

    @property
    def unanswered_request(self) -> int | None:
        """The number of its request for room, if that has no answer yet.

        The number is read first: what is read of the page afterwards is of this request, or of a later one, which
        does not take the answer for its own.
        """
        number = int(self.page.report.unmet_request_seq)
        return number if self.unmet_bytes and int(self.page.control.refused_request_seq) != number else None

    @property
    def memory_use(self) -> MemoryUse:
        report = self.page.report
        allocated = self.allocated
        resident = min(int(report.resident), allocated)
        return MemoryUse(allocated, resident, min(int(report.unmovable), resident))

    @property
    def memory_mode(self) -> str:
        """The mode by its name; empty if the process has not set it."""
        return pages.memory_mode(int(self.page.report.memory_mode))

    @property
    def is_resident_exact(self) -> bool:
        """Whether it knows what of its memory is on the device."""
        report = self.page.report
        return pages.is_resident_exact(int(report.memory_mode), int(report.uses_managed_memory))

    @property
    def host_pinned(self) -> int:
        return min(int(self.page.report.host_pinned), MAX_BYTES)

    @property
    def host_pageable(self) -> int:
        return min(int(self.page.report.host_pageable), MAX_BYTES)

    @property
    def quota(self) -> Quota | None:
        """The quota that an earlier coordinator wrote to this page, if it is one."""
        return quota_codec.decode_quota(self.page.control)

    @property
    def suspended_by_user(self) -> bool:
        """Whether a person has said so, under an earlier coordinator or this one."""
        return quota_codec.is_suspended(self.page.control)

    @property
    def suspended_by_policy(self) -> bool:
        """Whether it is, or was under an earlier coordinator, for being idle."""
        return quota_codec.is_suspended_by_policy(self.page.control)

    @property
    def is_stopped(self) -> bool:
        """By a signal or a debugger: it neither takes a turn nor ends one."""
        try:
            with open(f"/proc/{self.connection.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    def ring(self) -> None:
        """Let the process look at its page."""
        self.connection.send(DOORBELL)

    def write_permit(self, permit: pages.Permit) -> None:
        if permit != self._permit:
            if permit.epoch != self._permit.epoch:
                self.was_refused_entry()
            self._permit = permit
            self.page.write_permit(permit)
            self.ring()

    def was_refused_entry(self) -> bool:
        """Return True if the process has been refused a turn since it was asked last, or given a permit."""
        turn = self.page.read_turn()
        if turn is None or turn.refused_entries == self._refused_entries:
            return False
        self._refused_entries = turn.refused_entries
        return True

    def has_new_request(self) -> bool:
        """Return True if the process has asked for room, or no longer does, since this was asked last."""
        before, self._unmet_request_seq = self._unmet_request_seq, int(self.page.report.unmet_request_seq)
        return before != self._unmet_request_seq

    def interrupt(self) -> None:
        self.page.interrupt()
        self.ring()

    def set_prefetch_limit(self, most: int) -> None:
        """Up to `most` bytes of this process may be on the device while its gate is closed; 0: no more comes back."""
        if self.page.control.prefetch_limit != most:
            self.page.control.prefetch_limit = most
            self.ring()
