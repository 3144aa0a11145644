"""Usage of clients: sampled once a second, saved by the state store and returned to queries."""

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

_MAX_CLOCK_DRIFT_SECONDS = 60.0  # difference of wall clock and monotonic clock in an hour


class UsageService:
    """Usage of the clients of one scheduler. `kept_days`: days after which usage is deleted."""

    def __init__(self, scheduler: Scheduler, state_store: StateStore, kept_days: float, now: float) -> None:
        self._scheduler = scheduler
        self._state_store = state_store
        self._kept_days = kept_days
        self.accumulator = UsageAccumulator(state_store.add_usage)
        self._pruned = (now, time.time())
        self._rows: list[dict[str, Any]] = []  # cached rows of all totals, as of `_rows_version`
        self._rows_version = -1

    def on_client_events(self, clients: Iterable[str]) -> None:
        """Count the ended waits and turns of clients after events about them."""
        for identity in clients:
            if client := self._scheduler.clients.get(identity):
                self.accumulator.on_client_event(client)

    def sample_all(self, runtimes: Iterable[ClientRuntime], now: float) -> None:
        """Sample all clients, so that a query gets the usage until now."""
        for runtime in runtimes:
            self.sample_client(runtime, now)

    def sample_client(self, runtime: ClientRuntime, now: float) -> None:
        """Record a client's usage since its last sample. The periodic tasks call this once a second."""
        tenant = self._scheduler.placement_adapter.placement.placed[runtime.client_id].tenant
        self.accumulator.sample(self._scheduler.clients[runtime.client_id], tenant, runtime.work, now)

    def persist(self, now: float) -> None:
        """Write the usage to the state store, and delete old usage once an hour.

        The periodic tasks call this once a second, after the samples of all clients.
        """
        self._state_store.flush()
        before, wall = self._pruned
        if now - before >= HOUR_SECONDS:
            self._pruned = (now, time.time())
            # A wall clock that was set in the last hour may be wrong, so it must not decide what is deleted.
            if abs(self._pruned[1] - wall - (now - before)) < _MAX_CLOCK_DRIFT_SECONDS:
                self._state_store.prune(int(self._pruned[1] // HOUR_SECONDS), self._kept_days)

    def remove_client(self, runtime: ClientRuntime, now: float) -> None:
        """Record the last usage of a client that is about to be removed."""
        self.sample_client(runtime, now)
        self.accumulator.remove(runtime.client_id)

    def query(self, since: float, user: str, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Pass the usage of the last `since` seconds to `on_result`, of one user or for "" of all users.

        `wire.messages.Usage` describes the result.
        """
        now = time.time()
        first = first_hour(now - since, now)

        def answer(usage: dict[UsageOwner, UsageTotals] | None) -> None:
            readable = usage is not None
            if usage is None:  # only the usage since the start of this coordinator is known
                usage = {owner: totals for owner, totals in self.accumulator.totals.items() if user in ("", owner.user)}
            rows = [self._row(owner, totals) for owner, totals in sorted(usage.items())]
            on_result({"since": first * HOUR_SECONDS, "until": now, "rows": rows, "complete": readable})

        self._state_store.query_usage(first, user, answer)

    def summary(self) -> dict[str, Any]:
        """Return the usage of all users since the start of this coordinator, and histograms of waits and switches."""
        if self._rows_version != self.accumulator.totals_version:  # snapshots are more frequent than samples
            self._rows = [self._row(owner, totals) for owner, totals in sorted(self.accumulator.totals.items())]
            self._rows_version = self.accumulator.totals_version
        waits, switches = self.accumulator.waits.as_json(), self.accumulator.switches.as_json()
        return {"waits": waits, "switches": switches, "usage": self._rows}

    def _row(self, owner: UsageOwner, totals: UsageTotals) -> dict[str, Any]:
        device = self._scheduler.devices.get(owner.device)
        return {
            "user": user_name(owner.user),
            "tenant": owner.tenant or None,
            "device": owner.device,
            "device_name": device.info.name if device else "",
            "gpu_seconds": round(totals.gpu_seconds, 3),
            "busy_seconds": round(totals.busy_seconds, 3),
            "wait_seconds": round(totals.wait_seconds, 3),
            "waits": totals.waits,
            "turns": totals.turns,
            "evicted_bytes": totals.evicted_bytes,
            "restored_bytes": totals.restored_bytes,
        }
