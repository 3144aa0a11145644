"""Usage: counted once a second, kept by the journal, and told to who asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ..core import Scheduler
from .accounts import Accounts
from .journal import Journal
from .journal_file import first_hour
from .members import Member
from .tally import HOUR, Owner, Tally
from .users import tenant_name

_STEADY = 60.0  # seconds by which the wall clock may differ in an hour


class Usage:
    """Of the clients of one scheduler. `kept`: days."""

    def __init__(self, scheduler: Scheduler, journal: Journal, kept: float, now: float) -> None:
        self._scheduler = scheduler
        self._journal = journal
        self._kept = kept
        self.accounts = Accounts(journal.use)
        self._pruned = (now, time.time())
        self._rows: list[dict[str, Any]] = []  # of all totals, when there had been `_told` changes
        self._told = -1

    def changed(self, clients: Iterable[str]) -> None:
        """Events were about these clients."""
        for identity in clients:
            if client := self._scheduler.clients.get(identity):
                self.accounts.watch(client)

    def look(self, members: Iterable[Member], now: float) -> None:
        """Before anybody is told."""
        for member in members:
            self.look_at(member, now)

    def look_at(self, member: Member, now: float) -> None:
        """Once a second."""
        tenant = self._scheduler.placing.placement.placed[member.client].tenant
        self.accounts.look(self._scheduler.clients[member.client], tenant, member.work, now)

    def keep(self, now: float) -> None:
        """Once a second, when all have been looked at. Once an hour also what is too old is forgotten."""
        self._journal.flush()
        before, wall = self._pruned
        if now - before >= HOUR:
            self._pruned = (now, time.time())
            # A clock that has just been set may be wrong, or have been: nothing is thrown away by it.
            if abs(self._pruned[1] - wall - (now - before)) < _STEADY:
                self._journal.prune(int(self._pruned[1] // HOUR), self._kept)

    def leave(self, member: Member, now: float) -> None:
        """The client is about to be forgotten."""
        self.look_at(member, now)
        self.accounts.forget(member.client)

    def tell(self, since: float, user: str, told: Callable[[dict[str, Any]], None]) -> None:
        """The use of the last `since` seconds, of one user, or, if that is empty, of all: see `wire.messages.Usage`."""
        now = time.time()
        first = first_hour(now - since, now)

        def found(usage: dict[Owner, Tally] | None) -> None:
            readable = usage is not None
            if usage is None:  # what this coordinator has seen
                usage = {owner: tally for owner, tally in self.accounts.totals.items() if user in ("", owner.user)}
            rows = [self._row(owner, tally) for owner, tally in sorted(usage.items())]
            told({"since": first * HOUR, "until": now, "rows": rows, "complete": readable})

        self._journal.usage(first, user, found)

    def about(self) -> dict[str, Any]:
        """Of all users since this coordinator began, for the snapshot; seconds of waits and switches by length."""
        if self._told != self.accounts.changes:  # snapshots are taken more often
            self._rows = [self._row(owner, tally) for owner, tally in sorted(self.accounts.totals.items())]
            self._told = self.accounts.changes
        waits, switches = self.accounts.waits.as_json(), self.accounts.switches.as_json()
        return {"waits": waits, "switches": switches, "usage": self._rows}

    def _row(self, owner: Owner, tally: Tally) -> dict[str, Any]:
        device = self._scheduler.devices.get(owner.device)
        return {
            "user": tenant_name(owner.user),
            "tenant": owner.tenant or None,
            "device": owner.device,
            "device_name": device.info.name if device else "",
            "gpu_seconds": round(tally.gpu_seconds, 3),
            "busy_seconds": round(tally.busy_seconds, 3),
            "wait_seconds": round(tally.wait_seconds, 3),
            "waits": tally.waits,
            "turns": tally.turns,
            "evicted_bytes": tally.evicted_bytes,
            "restored_bytes": tally.restored_bytes,
        }
