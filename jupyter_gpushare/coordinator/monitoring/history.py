"""History of the phases, holds and cells of each client, for timelines."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from typing import Any, NamedTuple

from ...core.measure.cell_runs import EndedRun
from ...core.state.model import DRAINING, IDLE, RUNNING, SUSPENDED, WAITING, Client
from ...core.views.wait_forecast import is_holding
from ...wire.messages import MAX_LINE

MAX_AGE_SECONDS = 600.0
MAX_ENTRIES = 20_000
STATE_HELD = "held"  # the client has a turn by its hold, and has no work
GONE, CELL_STARTED, CELL_ENDED = "gone", "cell_started", "cell_ended"

_HOLD_END_TOLERANCE_SECONDS = 0.1  # within which a turn that ends after its hold counts as ended with the hold
_MAX_ANSWER_BYTES = MAX_LINE - 4096  # for entries; the other fields of the reply need the rest of the line
_ENTRY_OVERHEAD_BYTES = 128  # of an entry without its client


class Entry(NamedTuple):
    at: float
    client: str
    what: str
    run: EndedRun | None = None  # of a cell that ran before and has ended

    def fields(self) -> dict[str, Any]:
        """Return the entry as in the reply."""
        fields: dict[str, Any] = {"at": round(self.at, 6), "client": self.client, "what": self.what}
        if self.run and self.run.expected:
            fields["gpu_seconds"] = round(self.run.needed.seconds, 3)
            fields["expected_seconds"] = round(self.run.expected.seconds, 3)
            fields["allocated"] = self.run.needed.peak_bytes
            fields["expected_allocated"] = self.run.expected.peak_bytes
        return fields


class _State(NamedTuple):
    phase: str
    in_cell: bool


class History:
    """History of all clients. The cost of a change is independent of the numbers of entries and clients."""

    def __init__(self, now: float) -> None:
        self.run = secrets.token_hex(8)
        self._entries: deque[Entry] = deque()
        self._count = 0  # of all entries, with removed ones: the number of the last entry
        self._present: dict[str, _State] = {}
        self._initial: dict[str, _State] = {}  # at `_since`, before the first entry
        self._since = now
        self._holding: set[str] = set()

    @property
    def holding_clients(self) -> frozenset[str]:
        """Clients that must be recorded after every event, because the end of a hold is no event."""
        return frozenset(self._holding)

    def record(self, identity: str, client: Client | None, now: float) -> None:
        """Record the changes of a client since its last record; None: the client was removed."""
        known = self._present.get(identity)
        if client is None:
            self._holding.discard(identity)
            if known:
                del self._present[identity]
                self._add(Entry(now, identity, GONE))
            return
        state = _State(_phase(client, now), bool(client.cells))
        if state == known:
            return
        if known and known.phase == STATE_HELD:
            hold_end = now if client.hold_until is None else client.hold_until
            if hold_end < now - (0.0 if state.phase == RUNNING else _HOLD_END_TOLERANCE_SECONDS):
                latest = self._entries[-1].at if self._entries else self._since
                known = known._replace(phase=RUNNING)
                self._add(Entry(max(hold_end, latest), identity, RUNNING))
        self._present[identity] = state
        (self._holding.add if state.phase == STATE_HELD else self._holding.discard)(identity)
        if state.in_cell and not (known and known.in_cell):
            self._add(Entry(now, identity, CELL_STARTED))
        if known is None or known.phase != state.phase:
            self._add(Entry(now, identity, state.phase))
        if known and known.in_cell and not state.in_cell:
            self._add(Entry(now, identity, CELL_ENDED, client.ended_run))

    def entries_since(self, after: int, client: str, now: float) -> dict[str, Any]:
        """Return the entries after number `after` of one client, or of all clients for "", within one reply's size.

        For 0, and if the next entry was removed, the result begins with the states before the first entry.
        """
        self._trim(now)
        first = self._count - len(self._entries)  # number of removed entries
        selected: list[Entry] = []
        if not first <= after <= self._count or after == 0:
            after = first
            selected += [
                Entry(self._since, identity, what)
                for identity, state in self._initial.items()
                if client in ("", identity)
                for what in ((CELL_STARTED, state.phase) if state.in_cell else (state.phase,))
            ]
        room = _MAX_ANSWER_BYTES - sum(len(entry.client) + _ENTRY_OVERHEAD_BYTES for entry in selected)
        last = after
        for entry in itertools.islice(self._entries, after - first, None):
            if client in ("", entry.client):
                room -= len(entry.client) + _ENTRY_OVERHEAD_BYTES
                if room < 0 and last > after:
                    break
                selected.append(entry)
            last += 1
        return {
            "run": self.run,
            "now": round(now, 6),
            "next": last,
            "more": last < self._count,
            "entries": [entry.fields() for entry in selected],
        }

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._count += 1
        self._trim(entry.at)

    def _trim(self, now: float) -> None:
        while self._entries and (len(self._entries) > MAX_ENTRIES or self._entries[0].at < now - MAX_AGE_SECONDS):
            at, client, what, _ = self._entries.popleft()
            self._since = at
            state = self._initial.get(client, _State(IDLE, False))
            if what == GONE:
                self._initial.pop(client, None)
            elif what in (CELL_STARTED, CELL_ENDED):
                self._initial[client] = state._replace(in_cell=what == CELL_STARTED)
            else:
                self._initial[client] = state._replace(phase=what)


def _phase(client: Client, now: float) -> str:
    if client.grant:
        if client.grant.is_draining:
            return DRAINING
        return STATE_HELD if is_holding(client.grant, now) else RUNNING
    if client.suspended:
        return SUSPENDED
    return IDLE if client.waiting_since is None else WAITING
