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

from ..core.model import Client
from .measures import Work
from .tally import HOUR, Key, Owner, Tally


@dataclass
class _Seen:
    """Of one client, when it was looked at last. Of figures that processes tell, the greatest."""

    at: float
    held: dict[str, float] = field(default_factory=dict)
    work: dict[str, Work] = field(default_factory=dict)
    wait_seconds: float = 0.0
    waits: int = 0
    turns: int = 0


class _Over(NamedTuple):
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


MOST = 4096  # users with their devices, of which totals are told: pods come and go, and each is a user


class Accounts:
    """Of all clients. `use` is told what is new; `wall` is the wall clock."""

    def __init__(self, use: Callable[[Key, Tally], None], wall: Callable[[], float] = time.time) -> None:
        self.totals: dict[Owner, Tally] = {}  # since this coordinator began; who has used something last comes last
        self.changes = 0  # of the totals
        self.waits = Histogram()  # that are over
        self.switches = Histogram()  # what turns have cost, at their ends
        self._use = use
        self._wall = wall
        self._seen: dict[str, _Seen] = {}
        self._over: dict[str, _Over] = {}

    def watch(self, client: Client) -> None:
        """A wait or a turn of it may be over. To be called after every event about it."""
        known = self._over.get(client.id, _Over())
        now = _Over(client.waits - (client.waiting_since is not None), client.wait_seconds, client.switch_seconds)
        if now.waits > known.waits:  # many, who waits for nothing at once: only one has a length
            self.waits.add(now.wait_seconds - known.wait_seconds)
            for _ in range(known.waits + 1, now.waits):
                self.waits.add(0.0)
        if now.switch_seconds > known.switch_seconds:
            self.switches.add(now.switch_seconds - known.switch_seconds)
        self._over[client.id] = now

    def look(self, client: Client, tenant: str, work: Mapping[str, Work], now: float) -> None:
        """Take down what is new of it. `work`: what its processes have told, by device."""
        seen = self._seen.setdefault(client.id, _Seen(now))
        hours = list(_hours(self._wall(), now - seen.at))
        for uuid, news in self._news(seen, client, work, now).items():
            owner = Owner(client.tenant, tenant, uuid)
            self._add(owner, news)
            rest = news
            for hour, fraction in hours[1:]:
                part = news.part(fraction)
                rest = rest.less(part)
                self._use(Key(hour, owner), part)
            self._use(Key(hours[0][0], owner), rest)

    def _add(self, owner: Owner, news: Tally) -> None:
        """What is forgotten is in the journal still."""
        total = self.totals.pop(owner, Tally())
        total.add(news)
        self.totals[owner] = total
        self.changes += 1
        if len(self.totals) > MOST:
            del self.totals[next(iter(self.totals))]

    def forget(self, client: str) -> None:
        """It is over, and was looked at."""
        self._seen.pop(client, None)
        self._over.pop(client, None)

    def _news(self, seen: _Seen, client: Client, work: Mapping[str, Work], now: float) -> dict[str, Tally]:
        held = client.held_seconds_at(now)
        waited = client.wait_seconds_at(now)
        news = {}
        for uuid in {*held, *client.devices}:
            before = seen.work.get(uuid, Work())
            # Nobody's device works for longer than one has it, whatever processes say.
            after = work.get(uuid, Work()).at_most(int(held.get(uuid, 0.0) * 1e9)).at_least(before)
            tally = news[uuid] = Tally(
                gpu_seconds=held.get(uuid, 0.0) - seen.held.get(uuid, 0.0),
                busy_seconds=(after.busy_ns - before.busy_ns) / 1e9,
                evicted_bytes=after.evicted - before.evicted,
                restored_bytes=after.restored - before.restored,
            )
            if uuid in client.devices:
                tally.wait_seconds = waited - seen.wait_seconds
                tally.waits = client.waits - seen.waits
                tally.turns = client.quanta - seen.turns
            seen.work[uuid] = after
        seen.at, seen.held = now, held
        seen.wait_seconds, seen.waits, seen.turns = waited, client.waits, client.quanta
        return {uuid: tally for uuid, tally in news.items() if tally}


def _hours(now: float, elapsed: float) -> Iterator[tuple[int, float]]:
    """(hour of the wall clock, part of the last `elapsed` seconds that lies in it), the present one first."""
    hour = math.floor(now / HOUR)
    inside = now - hour * HOUR
    yield hour, min(1.0, inside / elapsed) if elapsed else 1.0
    left = elapsed - inside
    while left > 0:
        hour -= 1
        yield hour, min(left, HOUR) / elapsed
        left -= HOUR
