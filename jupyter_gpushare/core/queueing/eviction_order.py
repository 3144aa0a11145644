"""Order in which the memory of clients leaves a device: the memory that will probably be needed last leaves first.

Offline clients are behind online clients in every queue, whatever the keys are.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator

from ..state.model import Client, Device


class EvictionOrder:
    """Eviction order of one device: idle clients, the longest idle first, then waiting clients from the queue's end.

    A query removes the outdated entries that it meets.
    An event costs O(log n), and a query O(results log n), amortised.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._idle: dict[str, Client] = {}
        self._waiting: list[tuple[int, float, int, str]] = []

    def add_idle(self, client: Client) -> None:
        """Add a client that neither has the device nor waits for it."""
        self._idle.pop(client.id, None)
        self._idle[client.id] = client

    def add_waiting(self, client: Client, key: float) -> None:
        if len(self._waiting) > 64 + 2 * len(self._device.clients):
            self._waiting = list({entry[3]: entry for entry in self._waiting if self._is_current(entry)}.values())
            heapq.heapify(self._waiting)
        heapq.heappush(self._waiting, (-client.service_rank, -key, -client.queue_sequence, client.id))

    def _is_current(self, entry: tuple[int, float, int, str]) -> bool:
        client = self._device.clients.get(entry[3])
        return (
            client is not None
            and client in self._device.queue
            and (client.service_rank, client.queue_sequence) == (-entry[0], -entry[2])
        )

    def remove_idle(self, client: Client) -> None:
        self._idle.pop(client.id, None)

    def idle_oldest_first(self) -> Generator[Client, None, None]:
        """Yield the idle clients that have memory on the device, the longest idle first."""
        outdated = []
        try:
            for client in self._idle.values():
                if client.grant or client in self._device.queue or not client.memory_on(self._device).resident:
                    outdated.append(client.id)
                else:
                    yield client
        finally:
            for identity in outdated:
                self._idle.pop(identity, None)

    def waiting_last_first(self) -> Generator[Client, None, None]:
        """Yield the waiting clients that have memory on the device, the last of the queue first."""
        valid: dict[str, tuple[int, float, int, str]] = {}
        try:
            while self._waiting:
                entry = heapq.heappop(self._waiting)
                if not self._is_current(entry):
                    continue
                client = self._device.clients[entry[3]]
                if client.memory_on(self._device).resident and client.id not in valid:
                    valid[client.id] = entry
                    yield client
        finally:
            for entry in valid.values():
                heapq.heappush(self._waiting, entry)
