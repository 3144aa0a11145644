"""Kernels and programs are killed, or stopped for longer than a quantum, at random moments."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Sequence

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client

from ..system.held import descriptors, mappings, memory
from ..system.host import Host, eventually
from ..system.notebook import starter
from . import figures
from .figures import pause
from .victims import BusyKernel, BusyProgram, Victim

EVENTS = 500 if figures.LONG else 20
QUANTUM = 0.1
BOUND = 2.0 if figures.LONG else 10.0  # seconds that a device may do nothing though somebody could run
STOPS = (1.5, 6.0)  # quanta, from and to


@pytest.mark.timeout(figures.TIMEOUT)
def test_killed_and_stopped_at_random_moments(host: Host, dice: random.Random) -> None:
    """The device is never idle for long unless who has it is stopped, and at the end nothing is left of anybody."""
    host.start_coordinator("--time-quantum", str(QUANTUM))
    before = descriptors(host)
    with starter() as start:
        victims = [*(BusyProgram(host, name) for name in ("a", "b", "c", "pair", "pair")), BusyKernel(host, start)]
        for victim in victims:
            victim.begin()
        for victim in victims:
            eventually(lambda: host.executions(victim.pids[-1]))  # noqa: B023 - called before the next round
        size, files = memory(host), shared_memory(host)
        events, watch = Events(victims, dice), Watch(host)
        watch.start()
        for _ in range(EVENTS):
            events.next()
            pause(dice.uniform(0.0, 0.2))
        while events.stopped:
            events.wake(time.monotonic())
            pause(0.01)
        watch.finish()
        for victim in victims:
            victim.finish()
    eventually(lambda: not any(client["processes"] for client in host.clients().values()))
    assert not any(client["allocated"] for client in host.clients().values())
    grown = memory(host) - size
    eventually(lambda: descriptors(host) <= before)
    assert mappings(host) == 0
    assert shared_memory(host) <= files
    assert host.status()["devices"][0]["grants"] == []
    overlap = host.overlap(*(pids(victims, client) for client in {victim.client for victim in victims}))
    idle, stuck = unexcused(busy_times(host, victims), watch, events.stops)
    figures.tell(
        "process-kills",
        {
            "kills": len(events.kills),
            "stops": len(events.stops),
            "of these of who had the device": sum(watch.had(client, since) for since, _, client in events.stops),
            "overlapping turns, s": overlap,
            "longest time without work on the device, s": round(idle, 3),
            "longest while who had it was not stopped, s": round(stuck, 3),
            "descriptors, mapped pages and files left": 0,
            "growth of the coordinator's memory, MiB": round(grown / 2**20, 1),
        },
    )
    assert overlap == 0
    assert stuck < BOUND
    assert grown < 16 << 20


def shared_memory(host: Host) -> set[str]:
    """The files that are in /dev/shm on a host that is not a test's: lock files, and the simulated device."""
    return {str(path) for pattern in ("locks/*", "devices*") for path in host.folder.glob(pattern)}


def pids(victims: Sequence[Victim], client: str) -> list[int]:
    return [pid for victim in victims if victim.client == client for pid in victim.pids]


def busy_times(host: Host, victims: Sequence[Victim]) -> list[tuple[float, float]]:
    """When the device worked for anybody, monotonic seconds.

    Of a launch of a stopped process, which the simulated device ends when it goes on, the beginning counts.
    """
    executions = host.executions(*(pid for victim in victims for pid in victim.pids))
    return figures.merged((e.begin_ns / 1e9, min(e.end_ns / 1e9, e.begin_ns / 1e9 + 0.05)) for e in executions)


def unexcused(
    busy: Sequence[tuple[float, float]], watch: Watch, stops: Sequence[tuple[float, float, str]]
) -> tuple[float, float]:
    """The longest time in which the device did nothing, and the longest in which nobody who had it was stopped."""
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(busy)]
    gaps = [gap for gap in gaps if watch.seen[0][0] < gap[0] and gap[1] < watch.seen[-1][0]]
    longest = stuck = 0.0
    for gap in gaps:
        holders = watch.holders(*gap)
        excuses = [(since, until) for since, until, client in stops if client in holders]
        longest = max(longest, gap[1] - gap[0])
        stuck = max(stuck, gap[1] - gap[0] - figures.covered(gap, excuses))
    return longest, stuck


class Watch(threading.Thread):
    """Asks who has the device, all the time."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self._socket = host.socket
        self._over = threading.Event()
        self.seen: list[tuple[float, frozenset[str]]] = []  # when, and which clients

    def run(self) -> None:
        with Client(self._socket) as connection:
            while not self._over.wait(0.02):
                grants = connection.request(messages.Status())["devices"][0]["grants"]
                self.seen.append((time.monotonic(), frozenset(grant["client"] for grant in grants)))

    def finish(self) -> None:
        self._over.set()
        self.join()

    def had(self, client: str, when: float) -> bool:
        """Whether it had the device when it was last asked for before then."""
        before = [holders for at, holders in self.seen if at < when]
        return bool(before) and client in before[-1]

    def holders(self, begin: float, end: float) -> set[str]:
        """Who has been seen to have it between these times, and just before and after."""
        near = 0.2
        return {client for at, some in self.seen if begin - near < at < end + near for client in some}


class Events:
    """What has been done to whom. `kills` are (when, client), `stops` (from, to, client), in monotonic seconds."""

    def __init__(self, victims: list[Victim], dice: random.Random) -> None:
        self._victims, self._dice = victims, dice
        self.stopped: dict[Victim, tuple[float, float]] = {}  # since when, and until when
        self.kills: list[tuple[float, str]] = []
        self.stops: list[tuple[float, float, str]] = []

    def next(self) -> None:
        victim = self._dice.choice(self._victims)
        if self._dice.random() < 0.5 and victim not in self.stopped:
            victim.send(signal.SIGSTOP)
            now = time.monotonic()
            self.stopped[victim] = (now, now + QUANTUM * self._dice.uniform(*STOPS))
        else:
            victim.kill()
            self._note_end(victim)
            self.kills.append((time.monotonic(), victim.client))
            victim.begin()
        self.wake(time.monotonic())

    def wake(self, now: float) -> None:
        """Those whose time has come."""
        for victim, (_, until) in list(self.stopped.items()):
            if until <= now:
                victim.send(signal.SIGCONT)
                self._note_end(victim)

    def _note_end(self, victim: Victim) -> None:
        if stop := self.stopped.pop(victim, None):
            self.stops.append((stop[0], time.monotonic(), victim.client))
