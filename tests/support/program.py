"""The program of a simulated process: threads that call the driver through the gate, work on the device, and memory.

A call is inside the gate for a moment and leaves work on the device, which ends some time later. Ranks of a client do
collectives: the work of one ends only when the others have made their calls, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jupyter_gpushare.agent.rule import CLOSED_GATE, OPEN_GATE, STEP_GATE

from .clock import NEVER, Handle
from .room import Room

if TYPE_CHECKING:
    from .agent import Agent

LOOK = 0.2  # a waiting thread looks up this often
AHEAD = 0.05  # seconds of work that may be queued on the device when the next call is made
BANDWIDTH = 20e9  # bytes a second at which memory moves


@dataclass
class Habits:
    """The traits of a client's programs. Times in seconds."""

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
    stepped: int = -1  # the opening of the step in which it has made its call
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
        self.room = Room(agent)
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

    def _may_pass(self, thread: Thread) -> bool:
        agent = self.agent
        return agent.gate == OPEN_GATE or (agent.gate == STEP_GATE and thread.stepped != agent.opening)

    def _call(self, thread: Thread) -> None:
        agent = self.agent
        if not self._may_pass(thread):
            if not thread.waits:
                thread.waits, thread.since = True, self.clock.now
                agent.waits(1)
            thread.again = self._in(LOOK, self._looks_up, thread)
            return
        if thread.waits:
            thread.waits = False
            agent.waits(-1)
        thread.let_in += 1
        self.passed += 1
        if agent.gate == STEP_GATE:
            thread.stepped = agent.opening
        self.inside += 1
        self.host.enters(agent)
        restoring = max(0.0, self._memory_ready() - self.clock.now)  # what comes back is used, if the turn ends or not
        slow = 300 if self.random.random() < 0.01 else 1
        self._in(restoring + self.random.expovariate(1 / (slow * self.habits.inside)), self._leave, thread)

    def _leave(self, thread: Thread) -> None:
        self.inside -= 1
        self.agent.submissions += 1
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
        """Make the next call, as programs do: not far ahead of the device."""
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
        """Be interrupted: the call is not made."""
        thread.waits = False
        self.agent.waits(-1)
        if thread is self._rank:
            self._in(0.01, self._call, thread)  # the others depend on it
        else:
            self._in(self.random.expovariate(1 / self.habits.thinks), self._burst, thread)

    def woken(self) -> None:
        """Wake the threads at the gate, as its futex does."""
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

    def outstanding(self, now: float) -> bool:
        return self._stream_end > now or bool(self._waits_for)

    def ends(self, now: float) -> float:
        """Return when what is outstanding will have ended, if it waits for nothing else."""
        return NEVER if self._waits_for else max(self._stream_end, now)

    def owes(self, collective: Collective) -> None:
        """Take part in a collective."""
        self._owed.append(collective)
        if len(self._owed) == 1:
            self._in(self.random.expovariate(1000.0), self._call, self._rank)

    def look_at_collectives(self) -> None:
        before = len(self._waits_for)
        self._waits_for = [collective for collective in self._waits_for if collective.missing]
        if len(self._waits_for) < before:
            self._stream_end = max(self._stream_end, self.clock.now + self.random.expovariate(1 / self.habits.work))

    def works_for(self, seconds: float) -> None:
        """Leave work that takes very long on the device, if the gate is open."""
        if self.agent.gate != CLOSED_GATE:
            self._stream_end = max(self._stream_end, self.clock.now + seconds)

    def die(self) -> None:
        self._waits_for.clear()
        self._stream_end = 0.0
        self.inside = 0

    # --- memory

    def _allocate(self, then: Callable[[], None]) -> None:
        """Allocate more or less than before, as far as the limit goes, then call `then`."""
        if not self.habits.most or self.room.waits or self.random.random() < 0.5:
            then()
            return
        agent = self.agent
        orders, report, slots = agent.page.orders, agent.page.report, agent.client_page.slots
        wanted = self.random.randrange(self.habits.most)
        if self.habits.swaps and self.random.random() < 0.8:  # it grows
            wanted = min(report.allocated + self.random.randrange(1 << 30), self.habits.most)
        others = sum(slots[number].allocated for number in range(64) if number != agent.slot)
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
        agent.write_slot()
        if added and self.habits.swaps:
            self.room.wait(added, then)
        else:
            then()

    def evict(self) -> float:
        """Move what is to leave. Return how many seconds that takes."""
        page = self.agent.page
        report, target = page.report, max(page.orders.resident_target, self.room.wanted)
        if target >= report.resident:
            return 0.0
        moved = report.resident - target
        report.resident = target
        return float(moved / BANDWIDTH)

    def _memory_ready(self) -> float:
        """Return when all of it will be back for a call."""
        report = self.agent.page.report
        missing = report.allocated - report.resident
        if missing > 0:
            self._moved_until = self.clock.now + missing / BANDWIDTH
            report.resident = report.allocated
            report.restored += 1
            self.agent.link.ring()
        return self._moved_until
