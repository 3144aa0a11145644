"""What processes and kernels report, and what it means for turns: wanting, running, draining, cells, progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events as ev
from .errors import IllegalEvent
from .known import Known
from .model import Held
from .turns import Turns


class Reports:
    """Takes events of what has happened; `handlers` says which."""

    def __init__(self, known: Known, turns: Turns) -> None:
        self._known = known
        self._turns = turns
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.Wanted: self._wanted,
            ev.Unwanted: self._unwanted,
            ev.Drained: self._drained,
            ev.Evicting: self._evicting,
            ev.Restored: self._restored,
            ev.MemoryHeld: self._memory_held,
            ev.WentIdle: self._went_idle,
            ev.WentBusy: self._went_busy,
            ev.CellStarted: self._cell_started,
            ev.CellEnded: self._cell_ended,
            ev.Progress: self._progress,
            ev.LockRefused: self._lock_refused,
            ev.LockStray: self._lock_stray,
        }

    def _wanted(self, event: ev.Wanted, now: float) -> None:
        process = self._known.process(event.process)
        client = process.client
        grant = client.grant
        if grant and grant.gate_open:
            if grant.has_open(process):
                return  # sent before its gate opened
            # It uses a device that this grant does not cover, so that a new grant must; or it is not of this slice.
            process.wants, process.wants_since = True, now
            self._turns.begin_closing(grant, now)
            return
        if not process.wants:
            process.wants_since = now
        process.wants = True
        self._turns.touch(client)
        if grant is None:
            self._turns.enter_queue(client, now, now)

    def _unwanted(self, event: ev.Unwanted, now: float) -> None:
        process = self._known.process(event.process)
        process.wants = False
        self._turns.touch(process.client)
        self._turns.leave_queue_if_content(process.client, now)

    def _drained(self, event: ev.Drained, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if not self._turns.knows_epoch(process.number, event.epoch):
            raise IllegalEvent(f"process {event.process} drained of epoch {event.epoch}, which was never granted")
        if not grant or event.epoch != process.epoch or (grant.reopen_until is not None and grant.has_open(process)):
            return  # of a closing that was taken back meanwhile
        process.drained = True
        process.evicting = False
        self._turns.touch(process.client)
        self._turns.begin_closing(grant, now)  # its agent may have closed by itself, at the deadline that it was told
        if all(other.drained for other in process.client.processes.values()):
            self._turns.finish(grant, now)
        else:
            self._turns.slice_helped(grant, now)

    def _evicting(self, event: ev.Evicting, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if not grant or process.drained or event.epoch != process.epoch or not grant.has_closed(process):
            return  # of a closing that was taken back meanwhile
        process.evicting = True
        self._turns.only_memory_leaves(grant, now)

    def _restored(self, event: ev.Restored, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if not grant or event.epoch != process.epoch:
            return
        # Whatever it says, its turn is not longer than two quanta, or than its memory was expected to take.
        longest = max(self._turns.quantum(process.client), process.client.switching.cost, grant.expected_lead)
        lead = min(now - grant.began, longest)
        grant.lead = max(grant.lead, lead) if grant.restored else lead
        grant.restored = True
        self._turns.touch(process.client)

    def _memory_held(self, event: ev.MemoryHeld, now: float) -> None:
        client = self._known.client(event.client)
        client.short = event.short
        self._turns.hold(client, Held(event.allocated, event.resident, event.pinned))
        self._turns.touch(client)

    def _went_idle(self, event: ev.WentIdle, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if not grant or grant.draining or event.epoch != grant.epoch or not self._turns.contended(grant):
            return
        process.idle_epoch = event.epoch
        held = process.client.hold_until
        if grant.idle and (held is None or held <= now):
            self._turns.begin_closing(grant, now)
        self._turns.touch(process.client)

    def _went_busy(self, event: ev.WentBusy, now: float) -> None:
        process = self._known.process(event.process)
        if process.idle_epoch == event.epoch:
            process.idle_epoch = -1
            self._turns.touch(process.client)

    def _cell_started(self, event: ev.CellStarted, now: float) -> None:
        client = self._known.client(event.client)
        if not client.cells:
            client.cells_since = now
            self._turns.begin_work(client, now)
        client.cells.add(event.request)
        if client.grant:
            client.grant.cells_ended = None
        self._turns.touch(client)

    def _cell_ended(self, event: ev.CellEnded, now: float) -> None:
        client = self._known.client(event.client)
        # One that is not known began with an earlier coordinator, and ended before its kernel was back.
        client.cells.discard(event.request)
        if client.grant and not client.cells:
            client.grant.cells_ended = now
        self._turns.touch(client)

    def _progress(self, event: ev.Progress, now: float) -> None:
        client = self._known.client(event.client)
        alone = all(len(device.grants) < 2 for device in client.books)
        client.demand.progress(event.gpu_seconds, client.gpu_seconds_at(now), alone)
        self._turns.sharing.progress(client, event, now)
        if any(len(device.grants) > 1 or device.line for device in client.books):
            self._turns.touch(client)

    def _lock_refused(self, event: ev.LockRefused, now: float) -> None:
        client = self._known.client(event.client)
        if not client.grant or client.grant.epoch != event.epoch:
            raise IllegalEvent(f"client {event.client} has no grant of epoch {event.epoch}")
        self._turns.take_back(client.grant, now)

    def _lock_stray(self, event: ev.LockStray, now: float) -> None:
        client = self._known.client(event.client)
        if client.grant is None:
            self._turns.close_anew(client)
