"""Usage of clients by hour, user, tenant and device: sampled, saved by the state store, and queried.

GPU time comes from the scheduler's grants. So the GPU time of all clients adds up to the lengths of all grants of the
device, independently of the times of samples and of removed clients. The time of colocated clients counts for each of
them. The wall clock only names the hours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core import Scheduler
from ...core.state.model import Client
from ..clients.client_runtime import ClientRuntime
from ..clients.process_counters import WorkCounters
from ..host.user_database import user_name
from ..storage.state_database import first_hour
from ..storage.state_store import StateStore
from ..storage.usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals

_MAX_CLOCK_DRIFT_SECONDS = 60.0  # difference of wall clock and monotonic clock in an hour


@dataclass
class _LastSample:
    """Last sample of one client. Of counters that processes report, it has the greatest values so far."""

    at: float
    granted: dict[str, float] = field(default_factory=dict)  # seconds by device
    work: dict[str, WorkCounters] = field(default_factory=dict)
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0


class _FinishedWaits(NamedTuple):
    """Waits and switches of one client that have ended."""

    waits: int = 0
    wait_seconds: float = 0.0
    switch_seconds: float = 0.0


class Histogram:
    """Histogram of durations: bucket i counts those below 2^i ms and not in an earlier bucket, the last all others."""

    BUCKETS = 22  # the last but one ends at 17 minutes

    def __init__(self) -> None:
        self._buckets = [0] * self.BUCKETS
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._buckets[min(int(seconds * 1000).bit_length(), self.BUCKETS - 1)] += 1
        self._seconds += seconds

    def as_json(self) -> dict[str, Any]:
        return {"buckets": list(self._buckets), "seconds": round(self._seconds, 6)}


MAX_OWNERS = 4096  # owners in the totals, because each of many short-lived pods may be a user


class UsageAccumulator:
    """Accumulator of all clients. `record` gets each new usage; `wall_clock` returns seconds since 1970."""

    def __init__(
        self, record: Callable[[UsageKey, UsageTotals], None], wall_clock: Callable[[], float] = time.time
    ) -> None:
        # Since the start of this coordinator, in the order of each owner's last usage.
        self.totals: dict[UsageOwner, UsageTotals] = {}
        self.totals_version = 0
        self.waits = Histogram()  # ended waits
        self.switches = Histogram()  # changes of turns
        self._record = record
        self._wall_clock = wall_clock
        self._last_samples: dict[str, _LastSample] = {}
        self._finished_waits: dict[str, _FinishedWaits] = {}

    def on_client_event(self, client: Client) -> None:
        """Count a wait or turn of the client that has ended. The caller must call this after every event about it."""
        known = self._finished_waits.get(client.id, _FinishedWaits())
        now = _FinishedWaits(
            client.waits - (client.waiting_since is not None), client.wait_seconds, client.switch_seconds
        )
        if now.waits > known.waits:  # of several waits since the last event, only one can have a length
            self.waits.add(now.wait_seconds - known.wait_seconds)
            for _ in range(known.waits + 1, now.waits):
                self.waits.add(0.0)
        if now.switch_seconds > known.switch_seconds:
            self.switches.add(now.switch_seconds - known.switch_seconds)
        self._finished_waits[client.id] = now

    def sample(self, client: Client, tenant: str, work: Mapping[str, WorkCounters], now: float) -> None:
        """Record the client's usage since its last sample. `work` is the reported work by device."""
        last = self._last_samples.setdefault(client.id, _LastSample(now))
        hours = list(_hours(self._wall_clock(), now - last.at))
        for uuid, delta in self._deltas(last, client, work, now).items():
            owner = UsageOwner(client.user, tenant, uuid)
            self._add(owner, delta)
            rest = delta
            for hour, fraction in hours[1:]:
                in_hour = delta.scaled(fraction)
                rest = rest.minus(in_hour)
                self._record(UsageKey(hour, owner), in_hour)
            self._record(UsageKey(hours[0][0], owner), rest)

    def count_orphan(self, owner: UsageOwner) -> None:
        """Count a kernel that ends because no Jupyter server has adopted it."""
        self._add(owner, UsageTotals(orphans=1))
        self._record(UsageKey(math.floor(self._wall_clock() / HOUR_SECONDS), owner), UsageTotals(orphans=1))

    def _add(self, owner: UsageOwner, delta: UsageTotals) -> None:
        """Add usage to the totals. The state store keeps the usage of owners that the totals discard."""
        total = self.totals.pop(owner, UsageTotals())
        total.add(delta)
        self.totals[owner] = total
        self.totals_version += 1
        if len(self.totals) > MAX_OWNERS:
            del self.totals[next(iter(self.totals))]

    def remove(self, client: str) -> None:
        """Remove a client after its last sample."""
        self._last_samples.pop(client, None)
        self._finished_waits.pop(client, None)

    def _deltas(
        self, last: _LastSample, client: Client, work: Mapping[str, WorkCounters], now: float
    ) -> dict[str, UsageTotals]:
        granted = client.granted_seconds_at(now)
        waited = client.wait_seconds_at(now)
        deltas = {}
        for uuid in {*granted, *client.devices}:
            before = last.work.get(uuid, WorkCounters())
            # A report may claim more busy time than the device was granted for, which is impossible.
            after = work.get(uuid, WorkCounters()).at_most(int(granted.get(uuid, 0.0) * 1e9)).at_least(before)
            delta = deltas[uuid] = UsageTotals(
                gpu_seconds=granted.get(uuid, 0.0) - last.granted.get(uuid, 0.0),
                busy_seconds=(after.busy_ns - before.busy_ns) / 1e9,
                evicted_bytes=after.evicted - before.evicted,
                restored_bytes=after.restored - before.restored,
            )
            if uuid in client.devices:
                delta.wait_seconds = waited - last.wait_seconds
                delta.waits = client.waits - last.waits
                delta.turns = client.turn_count - last.turns
            last.work[uuid] = after
        last.at, last.granted = now, granted
        last.wait_seconds, last.waits, last.turns = waited, client.waits, client.turn_count
        return {uuid: delta for uuid, delta in deltas.items() if delta}


def _hours(now: float, elapsed: float) -> Iterator[tuple[int, float]]:
    """Yield (hour of the wall clock, fraction of the last `elapsed` seconds in that hour), the present hour first."""
    hour = math.floor(now / HOUR_SECONDS)
    inside = now - hour * HOUR_SECONDS
    yield hour, min(1.0, inside / elapsed) if elapsed else 1.0
    left = elapsed - inside
    while left > 0:
        hour -= 1
        yield hour, min(left, HOUR_SECONDS) / elapsed
        left -= HOUR_SECONDS


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
        tenant = self._tenant_of(runtime)
        self.accumulator.sample(self._scheduler.clients[runtime.client_id], tenant, runtime.work, now)

    def count_orphan(self, runtime: ClientRuntime) -> None:
        """Count a kernel that ends because no Jupyter server has adopted it, on the first one of its devices."""
        client = self._scheduler.clients[runtime.client_id]
        device = next(iter(client.devices), "")
        self.accumulator.count_orphan(UsageOwner(client.user, self._tenant_of(runtime), device))

    def _tenant_of(self, runtime: ClientRuntime) -> str:
        return self._scheduler.placement_adapter.placement.placed[runtime.client_id].tenant

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
            "orphans": totals.orphans,
        }
