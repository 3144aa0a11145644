"""Access to the page of one process: its report and its control block."""

from __future__ import annotations

from dataclasses import replace

from ...core.base.memory_use import MemoryUse
from ...core.base.quota import Quota
from ...wire import page as pages
from ...wire.messages import DOORBELL, Hello
from ..transport.connection import Connection
from . import quota_codec
from .context_memory import ContextMemory
from .device_memory import DeviceMemory, divide, read_use
from .process_counters import MAX_LAUNCHES, WorkCounters

MAX_BYTES = 1 << 50  # upper bound of sizes in a report, because a process may write any value there
_MAX_USE = MemoryUse(MAX_BYTES, MAX_BYTES, MAX_BYTES, unmade=MAX_BYTES)


class ProcessHandle:
    """Page and connection of a process; `number` identifies the process in the scheduler."""

    def __init__(self, number: int, connection: Connection, page: pages.Page, hello: Hello) -> None:
        self.number = number
        self.connection = connection
        self.page = page
        self.devices = tuple(sorted({device.uuid for device in hello.devices}))
        self._rows = tuple(device.uuid for device in hello.devices)  # the device of each row in the page
        self.slot = 0
        self.last_turn = pages.Turn()  # as of `sampled_at`
        self.last_levels = (False, False, int(page.report.restored))  # idle, evicting, number of restores
        self.sampled_at = 0.0
        self.context_memory = ContextMemory()
        self.hibernated = min(hello.hibernated, MAX_BYTES)  # bytes that have left the device with the process
        self._unmet_request_seq = 0
        self._refused_entries = 0  # at the last write of a permit or the last `was_refused_entry`
        self._permit = pages.Permit()
        self._initial_work = WorkCounters.read(page)  # work under an earlier coordinator
        self.steps_before = self.training_steps  # before the hello, or before the cell at hand

    @property
    def work(self) -> dict[str, WorkCounters]:
        """Work by device since the hello."""
        return WorkCounters.read(self.page).since(self._initial_work).per_device(self.devices)

    @property
    def allocated(self) -> int:
        return min(int(self.page.report.allocated), MAX_BYTES)

    @property
    def training_steps(self) -> int:
        """Training steps that the program has marked."""
        return min(int(self.page.report.training_steps), MAX_LAUNCHES)

    @property
    def unmet_bytes(self) -> int:
        """Bytes that the process requests and cannot get because the device is full."""
        return min(int(self.page.report.unmet_bytes), MAX_BYTES)

    @property
    def unmet_devices(self) -> tuple[str, ...]:
        """Devices on which the process requests room; all of its devices if the process does not name one."""
        number = int(self.page.report.unmet_device)
        return (self._rows[number - 1],) if 1 <= number <= len(self._rows) else self.devices

    @property
    def unanswered_request(self) -> int | None:
        """Number of the process's request for room, if the request has no answer yet.

        The number is read first. Values that are read afterwards belong to this request or to a later one, and a later
        request ignores an answer with this number.
        """
        number = int(self.page.report.unmet_request_seq)
        return number if self.unmet_bytes and int(self.page.control.refused_request_seq) != number else None

    @property
    def memory_use(self) -> MemoryUse:
        """Memory of the process on all of its devices. That of a hibernated process is on the host."""
        use = replace(read_use(self.page.report, _MAX_USE), unmet=self.unmet_bytes)
        return replace(use, resident=0, unmovable=0) if self.hibernated else use

    @property
    def context_bytes(self) -> int:
        """Context memory of the process on all of its devices, as far as it is known."""
        return 0 if self.hibernated else self.context_memory.bytes

    @property
    def memory_by_device(self) -> dict[str, MemoryUse]:
        """Memory of the process on each of its devices."""
        return self._divide_memory().by_device

    @property
    def is_placement_exact(self) -> bool:
        """Return whether the page shows the device of all memory of the process."""
        return self._divide_memory().is_exact

    def _divide_memory(self) -> DeviceMemory:
        rows = zip(self._rows, self.page.report.devices, strict=False)
        return divide(self.memory_use, self.devices, rows, self.unmet_devices)

    def sample_context_memory(self, driver_bytes: int | None) -> None:
        """Take a sample of the bytes of the process on its devices by the driver's account; None: unknown."""
        if driver_bytes is not None and not self.hibernated and (self.is_resident_exact or not self.allocated):
            self.context_memory.sample(driver_bytes, self.memory_use.resident)

    @property
    def memory_mode(self) -> str:
        """Name of the memory mode; empty if the process has not set the mode."""
        return pages.memory_mode(int(self.page.report.memory_mode))

    @property
    def bypassing_libraries(self) -> list[str]:
        """Names of the loaded libraries whose work may pass the gate."""
        return pages.bypassing_libraries(int(self.page.report.bypassing_libraries))

    @property
    def is_resident_exact(self) -> bool:
        """Return whether the process reports exactly how much of its memory is on the device."""
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
        """Quota that a coordinator wrote to this page; None without a valid one."""
        return quota_codec.decode_quota(self.page.control)

    @property
    def suspended_by_user(self) -> bool:
        """Return whether a user suspended the client, by the page, under an earlier coordinator or this one."""
        return quota_codec.is_suspended(self.page.control)

    @property
    def suspended_by_policy(self) -> bool:
        """Return whether the idle policy suspended the client, by the page."""
        return quota_codec.is_suspended_by_policy(self.page.control)

    @property
    def is_stopped(self) -> bool:
        """Return whether a signal or a debugger has stopped the process, which then neither enters nor ends a turn."""
        try:
            with open(f"/proc/{self.connection.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    def ring(self) -> None:
        """Make the process read its page."""
        self.connection.send(DOORBELL)

    def write_permit(self, permit: pages.Permit) -> None:
        if permit != self._permit:
            if permit.epoch != self._permit.epoch:
                self.was_refused_entry()
            self._permit = permit
            self.page.write_permit(permit)
            self.ring()

    def was_refused_entry(self) -> bool:
        """Return True if a turn lock has refused the process since the last call or the last permit."""
        turn = self.page.read_turn()
        if turn is None or turn.refused_entries == self._refused_entries:
            return False
        self._refused_entries = turn.refused_entries
        return True

    def has_new_request(self) -> bool:
        """Return True if the process has made or withdrawn a request for room since the last call."""
        before, self._unmet_request_seq = self._unmet_request_seq, int(self.page.report.unmet_request_seq)
        return before != self._unmet_request_seq

    def interrupt(self) -> None:
        self.page.interrupt()
        self.ring()

    def set_max_evicted(self, limit: int) -> None:
        """Let the process have up to `limit` bytes off its devices."""
        control = self.page.control
        grows = limit > control.evicted_limit
        control.evicted_limit = limit
        if grows and self.last_turn.phase == pages.OUT and self._has_surplus():
            self.ring()  # so that the process goes on to evict

    def _has_surplus(self) -> bool:
        """Return whether the process has more memory on a device than may stay there."""
        targets = self.page.control.resident_target
        return any(use.resident > targets[self._rows.index(uuid)] for uuid, use in self.memory_by_device.items())

    def set_resident_target(self, device: str, target: int) -> None:
        """Let the process keep `target` bytes on a device while other clients run."""
        row, targets = self._rows.index(device), self.page.control.resident_target
        if targets[row] != target:
            targets[row] = target
            if self.last_turn.phase == pages.OUT:
                self.ring()  # so that the process evicts at once

    def set_turn_limit(self, limit: int) -> None:
        """Let the process have up to `limit` bytes on its devices in its turn; 0: no limit."""
        control = self.page.control
        if control.turn_limit != limit:
            control.turn_limit = limit
            self.ring()

    def set_prefetch_limit(self, device: str, limit: int) -> None:
        """Let the process prefetch until it has `limit` bytes on a device; 0: no prefetch."""
        row, limits = self._rows.index(device), self.page.control.prefetch_limit
        if limits[row] != limit:
            limits[row] = limit
            self.ring()
