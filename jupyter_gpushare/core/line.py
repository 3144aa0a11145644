"""Who waits for one device, in the policy's order.

Online clients come before offline ones. Within a class, a client that has waited for longer than `max_wait` comes
first, then the client with the smallest key of the policy. Keys of waiting clients do not change, so that a heap
suffices whose outdated entries are dropped when they come up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from .model import Client
from .policies import Policy

_Entry = tuple[float, int, str]  # key, ticket, client


class Line:
    """`head` and changes cost O(log n), `ordered` O(n log n)."""

    def __init__(self, policy: Policy, max_wait: float) -> None:
        self._policy = policy
        self._max_wait = max_wait
        self._clients: dict[str, Client] = {}
        self._parts = (_Part(self, 0), _Part(self, 1))
        self._places: dict[str, tuple[int, _Entry]] = {}  # of those that are ready: part and valid entry
        self._head: Client | None = None
        self._head_until = -math.inf
        self._parked: list[_Entry] = []  # until when: they have used up what they may
        self._until: dict[str, _Entry] = {}  # of those: the valid entry

    def __len__(self) -> int:
        """How many wait and may run."""
        return len(self._places)

    def __contains__(self, client: Client) -> bool:
        return client.id in self._clients

    def has_others(self, client: Client) -> bool:
        """Return whether another client than this one waits and may run."""
        return len(self._places) > (client.id in self._places)

    @property
    def clients(self) -> Iterable[Client]:
        return self._clients.values()

    def add(self, client: Client, now: float) -> None:
        self.remove(client)
        self._clients[client.id] = client
        ready = client.ready_at
        if ready > now:
            entry = self._until[client.id] = (ready, client.ticket, client.id)
            heapq.heappush(self._parked, entry)
        else:
            self._enter(client)

    def remove(self, client: Client) -> None:
        self._clients.pop(client.id, None)
        self._until.pop(client.id, None)
        if place := self._places.pop(client.id, None):
            self._parts[place[0]].count -= 1
            self._head_until = -math.inf

    def settle(self, now: float) -> None:
        """Let those in whose time has come."""
        while self._parked and (self._parked[0][0] <= now or not self._is_parked(self._parked[0])):
            entry = heapq.heappop(self._parked)
            if self._is_parked(entry):
                del self._until[entry[2]]
                self._enter(self._clients[entry[2]])

    def next_ready(self) -> float | None:
        """When a client that is not ready now will be."""
        while self._parked and not self._is_parked(self._parked[0]):
            heapq.heappop(self._parked)
        return self._parked[0][0] if self._parked else None

    def head(self, now: float) -> Client | None:
        if not self._places:
            return None
        if now < self._head_until:
            return self._head
        part = self._parts[0] if self._parts[0].count else self._parts[1]
        patience = part.oldest() + self._max_wait
        self._head = part.head(now)
        # Somebody whose patience has ended stays the head as long as nothing changes.
        self._head_until = patience if now < patience else math.inf
        return self._head

    def patience_ends(self, part: int) -> float:
        """When somebody of that class will have waited for too long."""
        return self._parts[part].oldest() + self._max_wait

    def waits_since(self, part: int) -> float:
        """Return since when a client of that class, or of a better one, waits; infinity: none does."""
        return min(self._parts[number].oldest() for number in range(part + 1))

    def ordered(self, now: float) -> list[Client]:
        """The next one first; those that may not run yet last, by when they may."""
        ready = sorted((self._clients[i] for i in self._places), key=lambda client: self.order_key(client, now))
        parked = sorted(
            (c for c in self._clients.values() if c.id not in self._places), key=lambda c: (c.ready_at, c.ticket)
        )
        return ready + parked

    def ahead_of(self, client: Client, now: float) -> list[Client]:
        """Those who come before one that waits, in no order."""
        own = self.order_key(client, now)
        return [other for other in self._clients.values() if self.order_key(other, now) < own]

    def order_key(self, client: Client, now: float) -> tuple[float, ...]:
        """Sorts as the heads come."""
        place = self._places.get(client.id)
        if place is None:
            return (2, 0, client.ready_at, client.ticket)
        part, (key, ticket, _) = place
        if client.waiting_since is not None and now >= client.waiting_since + self._max_wait:
            return (part, 0, 0.0, ticket)
        return (part, 1, key, ticket)

    def _enter(self, client: Client) -> None:
        part = client.rank
        entry = (self._policy.key(client), client.ticket, client.id)
        self._places[client.id] = (part, entry)
        self._head_until = -math.inf
        self._parts[part].add(client, entry)

    def _is_parked(self, entry: _Entry) -> bool:
        return self._until.get(entry[2]) == entry

    def _valid(self, part: int, entry: _Entry) -> bool:
        return self._places.get(entry[2]) == (part, entry)


class _Part:
    """The clients of one service class."""

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number
        self.count = 0
        self._entries: list[_Entry] = []
        self._oldest: list[tuple[float, int, _Entry]] = []

    def add(self, client: Client, entry: _Entry) -> None:
        self.count += 1
        since = client.waiting_since if client.waiting_since is not None else math.inf
        heapq.heappush(self._oldest, (since, client.ticket, entry))
        heapq.heappush(self._entries, entry)

    def oldest(self) -> float:
        """Return since when a client waits; infinity: none does."""
        while self._oldest and not self._line._valid(self._number, self._oldest[0][2]):
            heapq.heappop(self._oldest)
        return self._oldest[0][0] if self._oldest else math.inf

    def head(self, now: float) -> Client | None:
        line = self._line
        if now >= self.oldest() + line._max_wait:
            return line._clients[self._oldest[0][2][2]]
        while self._entries and not line._valid(self._number, self._entries[0]):
            heapq.heappop(self._entries)
        return line._clients[self._entries[0][2]] if self._entries else None
