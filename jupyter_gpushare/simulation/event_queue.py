"""Timers of the simulation, in virtual time. `SimulatedAgent.run_until` runs them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from .entities import SimClient


class EventQueue:
    """Queue of timers. A new timer of the same client and kind replaces the old one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handled_events = 0
        self._heap: list[tuple[float, int, int, SimClient]] = []
        self._sequence = 0
        self._actions: list[Callable[[SimClient], None]] = []

    def schedule(self, time: float, kind: int, client: SimClient) -> None:
        self._sequence = sequence = self._sequence + 1
        client.timers[kind] = sequence
        heapq.heappush(self._heap, (time, sequence, kind, client))
