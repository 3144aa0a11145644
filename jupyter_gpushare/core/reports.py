"""What processes and kernels report, and what it means for turns: wanting, running, draining, cells, progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events as ev
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
            ev.Began: self._began,
            ev.Closed: self._closed,
            ev.Ended: self._ended,
            ev.NotTaken: self._not_taken,
            ev.Evicting: self._evicting,
            ev.Restored: self._restored,
            ev.MemoryHeld: self._memory_held,
            ev.WentIdle: self._went_idle,
            ev.WentBusy: self._went_busy,
            ev.CellStarted: self._cell_started,
            ev.CellEnded: self._cell_ended,
            ev.Progress: self._progress,
        }

    def _wanted(self, event: ev.Wanted, now: float) -> None:
        process = self._known.process(event.process)
        client = process.client
        if not process.wants:
            process.wants_since = now
        process.wants = True
        self._turns.touch(client)
        grant = client.grant
        if grant is None or client.uncovered:
            self._turns.enter_queue(client, now)
        elif client.permit and process.turn == 0 and process.left == client.permit.epoch:
            self._turns.permits.use_up(client)  # the turn goes on, and this process may come back to it

    def _unwanted(self, event: ev.Unwanted, now: float) -> None:
        process = self._known.process(event.process)
        process.wants = False
        self._turns.touch(process.client)
        self._turns.leave_queue_if_content(process.client, now)

    def _began(self, event: ev.Began, now: float) -> None:
        self._turns.began(self._known.process(event.process), event.turn, event.at, now)

    def _closed(self, event: ev.Closed, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if grant and grant.turn == event.turn == process.turn:
            self._turns.begin_closing(grant, now, event.at)

    def _ended(self, event: ev.Ended, now: float) -> None:
        process = self._known.process(event.process)
        if process.turn == event.turn:
            self._turns.ended(process, event.turn, event.closed, now)

    def _not_taken(self, event: ev.NotTaken, now: float) -> None:
        self._turns.not_taken(self._known.client(event.client), event.stopped, now)

    def _evicting(self, event: ev.Evicting, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if grant and grant.draining and process.turn == grant.turn:
            process.evicting = True
            self._turns.only_memory_leaves(grant, now)
            self._turns.touch(process.client)

    def _restored(self, event: ev.Restored, now: float) -> None:
        process = self._known.process(event.process)
        grant = process.client.grant
        if not grant or process.turn != grant.turn:
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
        if not grant or grant.draining or process.turn != grant.turn or not self._turns.contended(grant):
            return
        process.idle = True
        held = process.client.hold_until
        if grant.idle and (held is None or held <= now):
            self._turns.begin_closing(grant, now)
        self._turns.touch(process.client)

    def _went_busy(self, event: ev.WentBusy, now: float) -> None:
        process = self._known.process(event.process)
        process.idle = False
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
