"""Virtual time: the next event is the earliest entry of a heap, and no code ever waits.

Each entry has an owner: a coordinator, a process, or the host itself.
The entries of a stopped owner run when the owner is resumed, and those of a dead owner never run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

NEVER = float("inf")


class EventOwner:
    """Owner of entries of the clock, such as a process or a coordinator."""

    alive = True
    stopped = False
    resumed_at = float("-inf")  # time of the last resume
    is_counted = True  # entries of the owner count as events

    def __init__(self) -> None:
        self.deferred: list[TimerHandle] = []  # entries that were due while the owner was stopped


class TimerHandle:
    """Entry of the clock, with the interface of asyncio's TimerHandle."""

    __slots__ = ("args", "callback", "due", "owner")

    def __init__(
        self, due: float, owner: EventOwner, callback: Callable[..., object] | None, args: tuple[Any, ...]
    ) -> None:
        self.due, self.owner, self.callback, self.args = due, owner, callback, args

    def when(self) -> float:
        return self.due

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Clock of virtual seconds since an arbitrary moment. `events` counts the entries that have run."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events = 0
        self.on_event: Callable[[EventOwner], None] = lambda owner: None  # called after each event
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._order = 0

    def schedule(
        self, due: float, owner: EventOwner, callback: Callable[..., object], *args: Any, stated: float | None = None
    ) -> TimerHandle:
        """Schedule a callback. `stated` is the time that the handle reports, because real timers are late."""
        handle = TimerHandle(due if stated is None else stated, owner, callback, args)
        self._push(max(due, self.now), handle)
        return handle

    def _push(self, due: float, handle: TimerHandle) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, handle))

    def stop(self, owner: EventOwner) -> None:
        owner.stopped = True

    def resume(self, owner: EventOwner) -> None:
        """Resume an owner; the entries that were due meanwhile run now in their order."""
        owner.stopped, owner.resumed_at = False, self.now
        for handle in owner.deferred:
            self._push(self.now, handle)
        owner.deferred.clear()

    def step(self, end: float, except_for: EventOwner | None = None) -> bool:
        """Run the next entry that is due by `end`, and return False if there is none.

        Entries of the owner `except_for` stay in the heap.
        """
        excepted: list[tuple[float, int, TimerHandle]] = []
        found = False
        while self._heap and self._heap[0][0] <= end:
            entry = heapq.heappop(self._heap)
            due, _, handle = entry
            owner = handle.owner
            if handle.callback is None or not owner.alive:
                continue
            if owner is except_for:
                excepted.append(entry)
                continue
            if owner.stopped:
                owner.deferred.append(handle)
                continue
            self.now = max(self.now, due)
            callback, handle.callback = handle.callback, None
            self.events += owner.is_counted
            callback(*handle.args)
            self.on_event(owner)
            found = True
            break
        for entry in excepted:
            heapq.heappush(self._heap, entry)
        return found

    def run(self, end: float) -> None:
        while self.step(end):
            pass
        self.now = max(self.now, end)


class SimulatedLoop:
    """Part of asyncio's event loop that a coordinator uses, over the clock. Timers are late by small random times."""

    def __init__(self, clock: VirtualClock, owner: EventOwner, random: Random) -> None:
        self._clock, self._owner, self._random = clock, owner, random
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._writers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}

    def time(self) -> float:
        return self._clock.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        late = self._random.expovariate(5000.0) if self._random.random() < 0.95 else self._random.uniform(0.0, 0.02)
        return self._clock.schedule(max(when, self._clock.now) + late, self._owner, callback, *args, stated=when)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return self.call_at(self._clock.now + delay, callback, *args)

    def call_soon(self, callback: Callable[..., object], *args: Any) -> TimerHandle:
        return self._clock.schedule(self._clock.now, self._owner, callback, *args)

    call_soon_threadsafe = call_soon

    def add_reader(self, number: int, callback: Callable[..., object], *args: Any) -> None:
        self._readers[number] = callback, args

    def add_writer(self, number: int, callback: Callable[..., object], *args: Any) -> None:
        self._writers[number] = callback, args

    def remove_reader(self, number: int) -> bool:
        return self._readers.pop(number, None) is not None

    def remove_writer(self, number: int) -> bool:
        return self._writers.pop(number, None) is not None

    def readable(self, number: int) -> bool:
        """Call the reader of this descriptor. Return False if there is none."""
        if found := self._readers.get(number):
            found[0](*found[1])
        return found is not None

    def writable(self, number: int) -> bool:
        if found := self._writers.get(number):
            found[0](*found[1])
        return found is not None
