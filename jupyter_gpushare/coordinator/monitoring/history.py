"""What each client did in the last minutes, change by change, for timelines."""

from __future__ import annotations

import itertools
import secrets
from collections import deque
from typing import Any, NamedTuple

from ...core.state.model import DRAINING, IDLE, RUNNING, SUSPENDED, WAITING, Client
from ...core.views.wait_forecast import is_holding
from ...wire.messages import MAX_LINE

MAX_AGE_SECONDS = 600.0
MAX_ENTRIES = 20_000
STATE_HELD = "held"  # it has a turn by its hold, and runs nothing
GONE, CELL_STARTED, CELL_ENDED = "gone", "cell_started", "cell_ended"

_HOLD_END_TOLERANCE_SECONDS = 0.1  # seconds within which a turn that ends with its hold does so
_MAX_ANSWER_BYTES = MAX_LINE - 4096  # bytes of an answer's line; what is left is for the rest of it
_ENTRY_OVERHEAD_BYTES = 64  # bytes of an entry beside its client


class Entry(NamedTuple):
    at: float
    client: str
    what: str


class _State(NamedTuple):
    phase: str
    in_cell: bool


class History:
    """Each change costs the same, however much is kept and however many clients there are."""

    def __init__(self, now: float) -> None:
        self.run = secrets.token_hex(8)
        self._entries: deque[Entry] = deque()
        self._count = 0  # of all entries that ever were: the number of the last one
        self._present: dict[str, _State] = {}
        self._initial: dict[str, _State] = {}  # at `_since`, when what is kept begins
        self._since = now
        self._holding: set[str] = set()

    @property
    def holding_clients(self) -> frozenset[str]:
        """Who is to be looked at again whatever happens: nothing does when a hold is over."""
        return frozenset(self._holding)

    def record(self, identity: str, client: Client | None, now: float) -> None:
        """Something may have changed for the client; None: it has left."""
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
            over = now if client.hold_until is None else client.hold_until
            if over < now - (0.0 if state.phase == RUNNING else _HOLD_END_TOLERANCE_SECONDS):
                latest = self._entries[-1].at if self._entries else self._since
                known = known._replace(phase=RUNNING)
                self._add(Entry(max(over, latest), identity, RUNNING))
        self._present[identity] = state
        (self._holding.add if state.phase == STATE_HELD else self._holding.discard)(identity)
        if state.in_cell and not (known and known.in_cell):
            self._add(Entry(now, identity, CELL_STARTED))
        if known is None or known.phase != state.phase:
            self._add(Entry(now, identity, state.phase))
        if known and known.in_cell and not state.in_cell:
            self._add(Entry(now, identity, CELL_ENDED))

    def entries_since(self, after: int, client: str, now: float) -> dict[str, Any]:
        """What followed entry number `after`, of one client or (if that is "") of all, as far as an answer has room.

        Where that is not kept any more, and for 0, it begins with how things stood at the beginning of what is kept.
        """
        self._trim(now)
        first = self._count - len(self._entries)  # how many are not kept any more
        told: list[Entry] = []
        if not first <= after <= self._count or after == 0:
            after = first
            told += [
                Entry(self._since, identity, what)
                for identity, state in self._initial.items()
                if client in ("", identity)
                for what in ((CELL_STARTED, state.phase) if state.in_cell else (state.phase,))
            ]
        room = _MAX_ANSWER_BYTES - sum(len(entry.client) + _ENTRY_OVERHEAD_BYTES for entry in told)
        last = after
        for entry in itertools.islice(self._entries, after - first, None):
            if client in ("", entry.client):
                room -= len(entry.client) + _ENTRY_OVERHEAD_BYTES
                if room < 0 and last > after:
                    break
                told.append(entry)
            last += 1
        return {
            "run": self.run,
            "now": round(now, 6),
            "next": last,
            "more": last < self._count,
            "entries": [{"at": round(at, 6), "client": identity, "what": what} for at, identity, what in told],
        }

    def _add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self._count += 1
        self._trim(entry.at)

    def _trim(self, now: float) -> None:
        while self._entries and (len(self._entries) > MAX_ENTRIES or self._entries[0].at < now - MAX_AGE_SECONDS):
            at, client, what = self._entries.popleft()
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
