"""Usage: counted once a second, kept by the state store, and told to who asks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from ...core import Scheduler
from ..clients.client_runtime import ClientRuntime
from ..host.user_names import user_name
from ..storage.state_database import first_hour
from ..storage.state_store import StateStore
from ..storage.usage_record import HOUR_SECONDS, UsageOwner, UsageTotals
from .usage_accumulator import UsageAccumulator

_MAX_CLOCK_DRIFT_SECONDS = 60.0  # seconds by which the wall clock may differ in an hour


class UsageService:
    """Of the clients of one scheduler. `kept`: days."""

    def __init__(self, scheduler: Scheduler, state_store: StateStore, kept_days: float, now: float) -> None:
        self._scheduler = scheduler
        self._state_store = state_store
        self._kept_days = kept_days
        self.accumulator = UsageAccumulator(state_store.add_usage)
        self._pruned = (now, time.time())
        self._rows: list[dict[str, Any]] = []  # of all totals, when there had been `_told` changes
        self._rows_version = -1

    def on_client_events(self, clients: Iterable[str]) -> None:
        """Events were about these clients."""
        for identity in clients:
            if client := self._scheduler.clients.get(identity):
                self.accumulator.on_client_event(client)

    def sample_all(self, runtimes: Iterable[ClientRuntime], now: float) -> None:
        """Before anybody is told."""
        for runtime in runtimes:
            self.sample_client(runtime, now)

    def sample_client(self, runtime: ClientRuntime, now: float) -> None:
        """Once a second."""
        tenant = self._scheduler.placement_adapter.placement.placed[runtime.client_id].tenant
        self.accumulator.sample(self._scheduler.clients[runtime.client_id], tenant, runtime.work, now)

    def persist(self, now: float) -> None:
        """Once a second, when all have been looked at. Once an hour also what is too old is forgotten."""
        self._state_store.flush()
        before, wall = self._pruned
        if now - before >= HOUR_SECONDS:
            self._pruned = (now, time.time())
            # A clock that has just been set may be wrong, or have been: nothing is thrown away by it.
            if abs(self._pruned[1] - wall - (now - before)) < _MAX_CLOCK_DRIFT_SECONDS:
                self._state_store.prune(int(self._pruned[1] // HOUR_SECONDS), self._kept_days)

    def remove_client(self, runtime: ClientRuntime, now: float) -> None:
        """The client is about to be forgotten."""
        self.sample_client(runtime, now)
        self.accumulator.remove(runtime.client_id)

    def query(self, since: float, user: str, on_result: Callable[[dict[str, Any]], None]) -> None:
        """The use of the last `since` seconds, of one user, or, if that is empty, of all: see `wire.messages.Usage`."""
        now = time.time()
        first = first_hour(now - since, now)

        def found(usage: dict[UsageOwner, UsageTotals] | None) -> None:
            readable = usage is not None
            if usage is None:  # what this coordinator has seen
                usage = {owner: tally for owner, tally in self.accumulator.totals.items() if user in ("", owner.user)}
            rows = [self._row(owner, tally) for owner, tally in sorted(usage.items())]
            on_result({"since": first * HOUR_SECONDS, "until": now, "rows": rows, "complete": readable})

        self._state_store.query_usage(first, user, found)

    def summary(self) -> dict[str, Any]:
        """Of all users since this coordinator began, for the snapshot; seconds of waits and switches by length."""
        if self._rows_version != self.accumulator.totals_version:  # snapshots are taken more often
            self._rows = [self._row(owner, tally) for owner, tally in sorted(self.accumulator.totals.items())]
            self._rows_version = self.accumulator.totals_version
        waits, switches = self.accumulator.waits.as_json(), self.accumulator.switches.as_json()
        return {"waits": waits, "switches": switches, "usage": self._rows}

    def _row(self, owner: UsageOwner, tally: UsageTotals) -> dict[str, Any]:
        device = self._scheduler.devices.get(owner.device)
        return {
            "user": user_name(owner.user),
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
