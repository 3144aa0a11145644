"""Virtual time: what happens next is the earliest entry of a heap, and nothing else ever waits.

Each entry has an owner: a coordinator, a process, or the host itself. The entries of a stopped owner happen when it
goes on, and those of a dead one never do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

NEVER = float("inf")


class EventOwner:
    """A participant, until it dies."""

    alive = True
    stopped = False
    resumed_at = float("-inf")  # when it was last stopped no more
    is_counted = True  # what it does is an event

    def __init__(self) -> None:
        self.deferred: list[TimerHandle] = []  # what was due while it was stopped


class TimerHandle:
    """One thing that will happen: what asyncio calls a TimerHandle."""

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
    """Seconds since some moment, as CLOCK_MONOTONIC has them. `events` counts what has happened."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.events = 0
        self.on_event: Callable[[EventOwner], None] = lambda owner: None  # called after each event, with its owner
        self._heap: list[tuple[float, int, TimerHandle]] = []
        self._order = 0

    def schedule(
        self, due: float, owner: EventOwner, callback: Callable[..., object], *args: Any, stated: float | None = None
    ) -> TimerHandle:
        """`stated`: the time that the handle says it is for; timers are late."""
        handle = TimerHandle(due if stated is None else stated, owner, callback, args)
        self._push(max(due, self.now), handle)
        return handle

    def _push(self, due: float, handle: TimerHandle) -> None:
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, handle))

    def stop(self, owner: EventOwner) -> None:
        owner.stopped = True

    def resume(self, owner: EventOwner) -> None:
        """What was due while it was stopped happens now, in that order."""
        owner.stopped, owner.resumed_at = False, self.now
        for handle in owner.deferred:
            self._push(self.now, handle)
        owner.deferred.clear()

    def step(self, end: float, except_for: EventOwner | None = None) -> bool:
        """The next event, if it is due by `end`; False: there is none. `except_for` is as if it were stopped."""
        held: list[tuple[float, int, TimerHandle]] = []
        found = False
        while self._heap and self._heap[0][0] <= end:
            entry = heapq.heappop(self._heap)
            due, _, handle = entry
            owner = handle.owner
            if handle.callback is None or not owner.alive:
                continue
            if owner is except_for:
                held.append(entry)
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
        for entry in held:
            heapq.heappush(self._heap, entry)
        return found

    def run(self, end: float) -> None:
        while self.step(end):
            pass
        self.now = max(self.now, end)


class SimulatedLoop:
    """What a coordinator uses of asyncio's event loop, over the clock. Timers are late by a random little."""

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
        """Call the reader of that descriptor. Return False if there is none."""
        if found := self._readers.get(number):
            found[0](*found[1])
        return found is not None

    def writable(self, number: int) -> bool:
        if found := self._writers.get(number):
            found[0](*found[1])
        return found is not None
