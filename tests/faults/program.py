"""What runs in a process: threads that call the driver through the gate, work on the device, and memory there.

A call is inside the gate for a moment and leaves work on the device, which ends some time later. Ranks of a client do
collectives: the work of one ends only when the others have made their calls, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .clock import NEVER, Handle
from .room import Room

if TYPE_CHECKING:
    from .agent import Agent

LOOK = 0.2  # a waiting thread looks up this often
AHEAD = 0.05  # seconds of work that may be queued on the device when the next call is made
BANDWIDTH = 20e9  # bytes a second at which memory moves
UNKNOWN = (1 << 64) - 1


@dataclass
class Habits:
    """What the programs of a client are like. Times in seconds."""

    threads: int = 1
    thinks: float = 0.3  # between two bursts of calls, on average
    calls: int = 20  # in a burst, on average
    pause: float = 0.008  # between two calls
    inside: float = 3e-5  # of a call
    work: float = 0.004  # on the device, of a call
    collectives: float = 0.0  # the fraction of calls that wait for the client's other processes
    patience: float = 0.0  # how often a wait is given up
    most: int = 0  # bytes that a process allocates at most
    swaps: bool = False  # its memory must have room on the device; else the driver pages it


@dataclass(eq=False)
class Thread:
    left: int = 0  # calls of this burst
    stepped: int = -1  # the word of the step that it has made its call in
    waits: bool = False
    since: float = 0.0
    let_in: int = 0  # how often it has come through the gate
    again: Handle | None = None


@dataclass(eq=False)
class Collective:
    """One call of each of the processes that take part."""

    missing: set[int] = field(default_factory=set)  # pids


class Program:
    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.habits: Habits = agent.client.habits
        self.random, self.clock, self.host = agent.random, agent.clock, agent.host
        self.threads = [Thread() for _ in range(self.habits.threads)]
        self._rank = Thread()  # that does the collectives
        self._owed: list[Collective] = []
        self.inside = 0
        self._stream_end = 0.0
        self._waits_for: list[Collective] = []
        self._submissions = self._seen = 0
        self.room = Room(agent)
        self._slot: int | None = None
        self._moved_until = 0.0
        self.passed = 0  # calls
        for thread in self.threads:
            self._in(self.random.expovariate(1 / self.habits.thinks), self._burst, thread)
        self.threads.append(self._rank)

    def _in(self, seconds: float, callback: object, thread: Thread) -> Handle:
        return self.clock.at(self.clock.now + seconds, self.agent, callback, thread)  # type: ignore[arg-type]

    # --- threads

    def _burst(self, thread: Thread) -> None:
        thread.left = 1 + int(self.random.expovariate(1 / self.habits.calls))
        self._allocate(lambda: self._call(thread))

    def _may_pass(self, thread: Thread, word: int) -> bool:
        return bool(word & 1) and not (word & 3 == 3 and thread.stepped == word) and self.agent.lets_in(word)

    def _call(self, thread: Thread) -> None:
        orders, report = self.agent.orders, self.agent.report
        word = orders.gate
        if not self._may_pass(thread, word):
            if not thread.waits:
                thread.waits, thread.since = True, self.clock.now
                report.waiting += 1
            self.agent.want(word)
            thread.again = self._in(LOOK, self._looks_up, thread)
            return
        if thread.waits:
            thread.waits = False
            report.waiting -= 1
        thread.let_in += 1
        self.passed += 1
        if word & 3 == 3:
            thread.stepped = word
        self.inside += 1
        self.host.enters(self.agent, word)
        restoring = max(0.0, self._memory_ready() - self.clock.now)  # what comes back is used, if the turn ends or not
        slow = 300 if self.random.random() < 0.01 else 1
        self._in(restoring + self.random.expovariate(1 / (slow * self.habits.inside)), self._leave, thread)

    def _leave(self, thread: Thread) -> None:
        self.inside -= 1
        self._submissions += 1
        now = self.clock.now
        self._stream_end = max(self._stream_end, now) + self.random.expovariate(1 / self.habits.work)
        if thread is self._rank:
            collective = self._owed.pop(0)
            collective.missing.discard(self.agent.pid)
            self._waits_for.append(collective)
            self.agent.client.settle_collectives()
            if self._owed:
                self._call(thread)
            return
        if self.habits.collectives and self.random.random() < self.habits.collectives:
            self.agent.client.collective(self.agent)
        thread.left -= 1
        if thread.left > 0:
            self._in(self.random.expovariate(1 / self.habits.pause), self._next, thread)
        else:
            self._in(self.random.expovariate(1 / self.habits.thinks), self._burst, thread)

    def _next(self, thread: Thread) -> None:
        """As programs do, it does not run far ahead of the device."""
        ahead = self._stream_end - self.clock.now - AHEAD
        if ahead > 0 or self._waits_for:
            self._in(max(ahead, 0.005), self._next, thread)
        elif self.habits.swaps and self.random.random() < 0.1:
            self._allocate(lambda: self._call(thread))
        else:
            self._call(thread)

    def _looks_up(self, thread: Thread) -> None:
        thread.again = None
        if not thread.waits:
            return
        if self.random.random() < self.habits.patience:
            self._give_up(thread)
        else:
            self._call(thread)

    def _give_up(self, thread: Thread) -> None:
        """It is interrupted: its call is not made."""
        thread.waits = False
        self.agent.report.waiting -= 1
        if not self.agent.report.waiting:
            self.agent.unwant()
        if thread is self._rank:
            self._in(0.01, self._call, thread)  # the others depend on it
        else:
            self._in(self.random.expovariate(1 / self.habits.thinks), self._burst, thread)

    def woken(self) -> None:
        """The futex of the gate."""
        for thread in self.threads:
            if thread.waits and thread.again:
                thread.again.cancel()
                thread.again = self._in(self.random.expovariate(20_000.0), self._wakes, thread)

    def _wakes(self, thread: Thread) -> None:
        thread.again = None
        if thread.waits:
            self._call(thread)

    @property
    def waiting_since(self) -> float | None:
        return min((thread.since for thread in self.threads if thread.waits), default=None)

    # --- the device

    def submitted(self) -> bool:
        """Since this was asked last."""
        before, self._seen = self._seen, self._submissions
        return before != self._submissions

    def outstanding(self, now: float) -> bool:
        return self._stream_end > now or bool(self._waits_for)

    def ends(self, now: float) -> float:
        """When what is outstanding will have ended, if nothing else is waited for."""
        return NEVER if self._waits_for else max(self._stream_end, now)

    def owes(self, collective: Collective) -> None:
        """Its part of a collective."""
        self._owed.append(collective)
        if len(self._owed) == 1:
            self._in(self.random.expovariate(1000.0), self._call, self._rank)

    def waits_for_nobody(self) -> None:
        """Its collectives end without the others' calls, as if its user had ended them."""
        for collective in self._waits_for:
            collective.missing.clear()
        self.agent.client.settle_collectives()

    def look_at_collectives(self) -> None:
        before = len(self._waits_for)
        self._waits_for = [collective for collective in self._waits_for if collective.missing]
        if len(self._waits_for) < before:
            self._stream_end = max(self._stream_end, self.clock.now + self.random.expovariate(1 / self.habits.work))

    def works_for(self, seconds: float) -> None:
        """Something takes very long, if its gate is open."""
        if self.agent.orders.gate & 1:
            self._stream_end = max(self._stream_end, self.clock.now + seconds)

    def die(self) -> None:
        self._waits_for.clear()
        self._stream_end = 0.0
        self.inside = 0

    # --- memory

    def _allocate(self, then: Callable[[], None]) -> None:
        """More or less than before, as far as the limit goes; `then` is called when that has been done."""
        if not self.habits.most or self.room.waits or self.random.random() < 0.5:
            then()
            return
        orders, report, client = self.agent.orders, self.agent.report, self.agent.files.client
        wanted = self.random.randrange(self.habits.most)
        if self.habits.swaps and self.random.random() < 0.8:  # it grows
            wanted = min(report.allocated + self.random.randrange(1 << 30), self.habits.most)
        others = sum(client.allocated[number] for number in range(64) if number != self._slot)
        most = orders.memory_limit - others if orders.memory_limit else wanted
        if wanted > report.allocated:
            more = min(wanted, max(most, 0)) - report.allocated
            if more <= 0 or more > orders.memory_backing:
                report.refused += 1
                then()
                return
            wanted = report.allocated + more
        added = max(0, wanted - report.allocated)
        report.resident = max(0, min(report.resident + added, wanted))
        report.allocated = wanted
        self.say_allocated()
        if added and self.habits.swaps:
            self.room.wait(added, then)
        else:
            then()

    def say_allocated(self) -> None:
        if self._slot is not None:
            self.agent.files.client.allocated[self._slot] = self.agent.report.allocated

    def take_slot(self) -> None:
        slot = self.agent.orders.slot % 64
        if self._slot is not None and self._slot != slot:
            self.agent.files.client.allocated[self._slot] = 0
        self._slot = slot
        self.say_allocated()

    def leave_slot(self) -> None:
        if self._slot is not None:
            self.agent.files.client.allocated[self._slot] = 0

    def evict(self) -> float:
        """What is to leave leaves; how many seconds that takes."""
        report, target = self.agent.report, max(self.agent.orders.resident_target, self.room.wanted)
        if target >= report.resident:
            return 0.0
        moved = report.resident - target
        report.resident = target
        return float(moved / BANDWIDTH)

    def look_at_memory(self, now: float) -> float:
        """While it does not run, it makes room at once when it is told to."""
        self.evict()
        return NEVER

    def _memory_ready(self) -> float:
        """When it will all be back for a call."""
        report = self.agent.report
        missing = report.allocated - report.resident
        if missing > 0:
            self._moved_until = self.clock.now + missing / BANDWIDTH
            report.resident = report.allocated
            if self.agent.orders.hears & 4:
                self.agent.link.say_restored()
        return self._moved_until
