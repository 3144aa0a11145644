"""Queue of the clients that wait for one device, in the policy's order.

Online clients come before offline clients. Within a class, a client that has waited for longer than `max_wait` comes
first, then the client with the smallest key of the policy. A deferred client comes last, until it may run: a client
that has used up its limit, or an offline client whose turn would cost online clients too much. A client that is short
of room also comes last, until its next `add`. The key of a waiting client counts from its last `add`, so a heap
suffices. Each `add` leaves an outdated entry of that client in the heap, which is dropped when the entry comes up.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from ..state.model import Client
from .policies import Policy

_Entry = tuple[float, int, str]  # key, sequence number, client


class WaitQueue:
    """Queue in which `head` and changes cost O(log n), and `in_order` O(n log n)."""

    def __init__(self, policy: Policy, max_wait: float) -> None:
        self._policy = policy
        self._max_wait = max_wait
        self._clients: dict[str, Client] = {}
        self._offline: dict[str, Client] = {}  # of `_clients`
        self._classes = (_ClassQueue(self, 0), _ClassQueue(self, 1))
        self._ready: dict[str, tuple[int, _Entry]] = {}  # by ready client: class of service and valid entry
        self._head: Client | None = None
        self._head_until = -math.inf
        self._deferred: list[_Entry] = []  # deferred clients, by the time when they are ready
        self._deferred_entries: dict[str, _Entry] = {}  # by deferred client: the valid entry

    def __len__(self) -> int:
        """Return the number of clients that wait and may run."""
        return len(self._ready)

    def __contains__(self, client: Client) -> bool:
        return client.id in self._clients

    def has_others(self, client: Client) -> bool:
        """Return whether another client than this one waits and may run."""
        return len(self._ready) > (client.id in self._ready)

    @property
    def clients(self) -> Iterable[Client]:
        return self._clients.values()

    @property
    def offline_clients(self) -> Iterable[Client]:
        return self._offline.values()

    def add(self, client: Client, now: float) -> None:
        self.remove(client)
        self._clients[client.id] = client
        if client.service_rank:
            self._offline[client.id] = client
        ready = client.ready_at
        if client.is_short_of_room:
            return
        if ready > now:
            entry = self._deferred_entries[client.id] = (ready, client.queue_sequence, client.id)
            heapq.heappush(self._deferred, entry)
        else:
            self._add_ready(client)

    def remove(self, client: Client) -> None:
        self._clients.pop(client.id, None)
        self._offline.pop(client.id, None)
        self._deferred_entries.pop(client.id, None)
        if ready_entry := self._ready.pop(client.id, None):
            self._classes[ready_entry[0]].count -= 1
            self._head_until = -math.inf

    def update_eligibility(self, now: float) -> None:
        """Make the deferred clients ready whose time has come."""
        while self._deferred and (self._deferred[0][0] <= now or not self._is_deferred(self._deferred[0])):
            entry = heapq.heappop(self._deferred)
            if self._is_deferred(entry):
                del self._deferred_entries[entry[2]]
                self._add_ready(self._clients[entry[2]])

    def next_ready_at(self) -> float | None:
        """Return when the next deferred client will be ready."""
        while self._deferred and not self._is_deferred(self._deferred[0]):
            heapq.heappop(self._deferred)
        return self._deferred[0][0] if self._deferred else None

    def head(self, now: float) -> Client | None:
        if not self._ready:
            return None
        if now < self._head_until:
            return self._head
        queue = self._classes[0] if self._classes[0].count else self._classes[1]
        starvation_deadline = queue.oldest() + self._max_wait
        self._head = queue.head(now)
        # A client that has waited for too long stays the head as long as nothing changes.
        self._head_until = starvation_deadline if now < starvation_deadline else math.inf
        return self._head

    def starvation_deadline(self, service_rank: int) -> float:
        """Return when the oldest client of that class will have waited for too long."""
        return self._classes[service_rank].oldest() + self._max_wait

    def waiting_since(self, service_rank: int) -> float:
        """Return since when a client of that class, or of a better one, waits; infinity: no client does."""
        return min(self._classes[number].oldest() for number in range(service_rank + 1))

    def in_order(self, now: float) -> list[Client]:
        """Return the clients, the next client first.

        Clients that may not run now come last, by the time when they are ready.
        """
        ready = sorted((self._clients[i] for i in self._ready), key=lambda client: self.order_key(client, now))
        deferred = sorted(
            (c for c in self._clients.values() if c.id not in self._ready), key=lambda c: (c.ready_at, c.queue_sequence)
        )
        return ready + deferred

    def predecessors(self, client: Client, now: float) -> list[Client]:
        """Return the clients that come before a waiting client, in no order."""
        own = self.order_key(client, now)
        return [other for other in self._clients.values() if self.order_key(other, now) < own]

    def order_key(self, client: Client, now: float) -> tuple[float, ...]:
        """Return a key that sorts clients in the order in which they become the head."""
        ready_entry = self._ready.get(client.id)
        if ready_entry is None:
            return (2, 0, client.ready_at, client.queue_sequence)
        service_rank, (key, sequence, _) = ready_entry
        if client.waiting_since is not None and now >= client.waiting_since + self._max_wait:
            return (service_rank, 0, 0.0, sequence)
        return (service_rank, 1, key, sequence)

    def _add_ready(self, client: Client) -> None:
        service_rank = client.service_rank
        entry = (self._policy.key(client), client.queue_sequence, client.id)
        self._ready[client.id] = (service_rank, entry)
        self._head_until = -math.inf
        self._classes[service_rank].add(client, entry)

    def _is_deferred(self, entry: _Entry) -> bool:
        return self._deferred_entries.get(entry[2]) == entry

    def _is_valid(self, service_rank: int, entry: _Entry) -> bool:
        return self._ready.get(entry[2]) == (service_rank, entry)


class _ClassQueue:
    """The clients of one class of service."""

    def __init__(self, queue: WaitQueue, service_rank: int) -> None:
        self._queue = queue
        self._service_rank = service_rank
        self.count = 0
        self._entries: list[_Entry] = []
        self._oldest: list[tuple[float, int, _Entry]] = []

    def add(self, client: Client, entry: _Entry) -> None:
        self.count += 1
        since = client.waiting_since if client.waiting_since is not None else math.inf
        heapq.heappush(self._oldest, (since, client.queue_sequence, entry))
        heapq.heappush(self._entries, entry)

    def oldest(self) -> float:
        """Return since when the longest waiting client of the class waits; infinity: no client does."""
        while self._oldest and not self._queue._is_valid(self._service_rank, self._oldest[0][2]):
            heapq.heappop(self._oldest)
        return self._oldest[0][0] if self._oldest else math.inf

    def head(self, now: float) -> Client | None:
        queue = self._queue
        if now >= self.oldest() + queue._max_wait:
            return queue._clients[self._oldest[0][2][2]]
        while self._entries and not queue._is_valid(self._service_rank, self._entries[0]):
            heapq.heappop(self._entries)
        return queue._clients[self._entries[0][2]] if self._entries else None
