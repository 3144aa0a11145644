"""Who has used what: of each client what is new since the last look, by hour, user, tenant and device.

The seconds are those of the scheduler's books, so that what clients are said to have had of a device is, in all, what
it was held, whenever one looks and whoever is gone by then. The wall clock only names the hours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...core.state.model import Client
from ..clients.process_counters import WorkCounters
from ..storage.usage_record import HOUR_SECONDS, UsageKey, UsageOwner, UsageTotals


@dataclass
class _LastSample:
    """Of one client, when it was looked at last. Of figures that processes tell, the greatest."""

    at: float
    held: dict[str, float] = field(default_factory=dict)
    work: dict[str, WorkCounters] = field(default_factory=dict)
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0


class _FinishedWaits(NamedTuple):
    """Of one client, as far as it is over."""

    waits: int = 0
    wait_seconds: float = 0.0
    switch_seconds: float = 0.0


class Histogram:
    """How often something took how long: bucket i counts times below 2^i ms and not below the bound of the one before,
    the last bucket whatever took longer."""

    BUCKETS = 22  # the last but one ends after 17 minutes

    def __init__(self) -> None:
        self._buckets = [0] * self.BUCKETS
        self._seconds = 0.0

    def add(self, seconds: float) -> None:
        self._buckets[min(int(seconds * 1000).bit_length(), self.BUCKETS - 1)] += 1
        self._seconds += seconds

    def as_json(self) -> dict[str, Any]:
        return {"buckets": list(self._buckets), "seconds": round(self._seconds, 6)}


MAX_OWNERS = 4096  # users with their devices, of which totals are told: pods come and go, and each is a user


class UsageAccumulator:
    """Of all clients. `use` is told what is new; `wall` is the wall clock."""

    def __init__(
        self, record: Callable[[UsageKey, UsageTotals], None], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self.totals: dict[
            UsageOwner, UsageTotals
        ] = {}  # since this coordinator began; who has used something last comes last
        self.totals_version = 0  # of the totals
        self.waits = Histogram()  # that are over
        self.switches = Histogram()  # what turns have cost, at their ends
        self._record = record
        self._wall_clock = wall_clock
        self._last_samples: dict[str, _LastSample] = {}
        self._finished_waits: dict[str, _FinishedWaits] = {}

    def on_client_event(self, client: Client) -> None:
        """A wait or a turn of it may be over. To be called after every event about it."""
        known = self._finished_waits.get(client.id, _FinishedWaits())
        now = _FinishedWaits(
            client.waits - (client.waiting_since is not None), client.wait_seconds, client.switch_seconds
        )
        if now.waits > known.waits:  # many, who waits for nothing at once: only one has a length
            self.waits.add(now.wait_seconds - known.wait_seconds)
            for _ in range(known.waits + 1, now.waits):
                self.waits.add(0.0)
        if now.switch_seconds > known.switch_seconds:
            self.switches.add(now.switch_seconds - known.switch_seconds)
        self._finished_waits[client.id] = now

    def sample(self, client: Client, tenant: str, work: Mapping[str, WorkCounters], now: float) -> None:
        """Take down what is new of it. `work`: what its processes have told, by device."""
        seen = self._last_samples.setdefault(client.id, _LastSample(now))
        hours = list(_hours(self._wall_clock(), now - seen.at))
        for uuid, news in self._deltas(seen, client, work, now).items():
            owner = UsageOwner(client.user, tenant, uuid)
            self._add(owner, news)
            rest = news
            for hour, fraction in hours[1:]:
                part = news.scaled(fraction)
                rest = rest.minus(part)
                self._record(UsageKey(hour, owner), part)
            self._record(UsageKey(hours[0][0], owner), rest)

    def _add(self, owner: UsageOwner, news: UsageTotals) -> None:
        """What is forgotten is in the state store still."""
        total = self.totals.pop(owner, UsageTotals())
        total.add(news)
        self.totals[owner] = total
        self.totals_version += 1
        if len(self.totals) > MAX_OWNERS:
            del self.totals[next(iter(self.totals))]

    def remove(self, client: str) -> None:
        """It is over, and was looked at."""
        self._last_samples.pop(client, None)
        self._finished_waits.pop(client, None)

    def _deltas(
        self, seen: _LastSample, client: Client, work: Mapping[str, WorkCounters], now: float
    ) -> dict[str, UsageTotals]:
        held = client.granted_seconds_at(now)
        waited = client.wait_seconds_at(now)
        news = {}
        for uuid in {*held, *client.devices}:
            before = seen.work.get(uuid, WorkCounters())
            # Nobody's device works for longer than one has it, whatever processes say.
            after = work.get(uuid, WorkCounters()).at_most(int(held.get(uuid, 0.0) * 1e9)).at_least(before)
            tally = news[uuid] = UsageTotals(
                gpu_seconds=held.get(uuid, 0.0) - seen.held.get(uuid, 0.0),
                busy_seconds=(after.busy_ns - before.busy_ns) / 1e9,
                evicted_bytes=after.evicted - before.evicted,
                restored_bytes=after.restored - before.restored,
            )
            if uuid in client.devices:
                tally.wait_seconds = waited - seen.wait_seconds
                tally.waits = client.waits - seen.waits
                tally.turns = client.turn_count - seen.turns
            seen.work[uuid] = after
        seen.at, seen.held = now, held
        seen.wait_seconds, seen.waits, seen.turns = waited, client.waits, client.turn_count
        return {uuid: tally for uuid, tally in news.items() if tally}


def _hours(now: float, elapsed: float) -> Iterator[tuple[int, float]]:
    """(hour of the wall clock, part of the last `elapsed` seconds that lies in it), the present one first."""
    hour = math.floor(now / HOUR_SECONDS)
    inside = now - hour * HOUR_SECONDS
    yield hour, min(1.0, inside / elapsed) if elapsed else 1.0
    left = elapsed - inside
    while left > 0:
        hour -= 1
        yield hour, min(left, HOUR_SECONDS) / elapsed
        left -= HOUR_SECONDS
