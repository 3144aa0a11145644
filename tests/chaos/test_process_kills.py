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

from ..system.notebook_client import kernel_starter
from ..system.resource_counts import descriptors, mapped_page_count, resident_bytes
from ..system.system_host import SystemHost, wait_until
from . import measurements
from .kill_targets import BusyKernel, BusyProgram, KillTarget
from .measurements import pause

FAULT_COUNT = 500 if measurements.IS_LONG else 20
QUANTUM = 0.1
MAX_IDLE_SECONDS = (
    2.0 if measurements.IS_LONG else 10.0
)  # seconds that a device may do nothing though somebody could run
STOP_QUANTA = (1.5, 6.0)  # quanta, from and to


@pytest.mark.timeout(measurements.TIMEOUT_SECONDS)
def test_processes_killed_and_stopped_at_random_moments_block_no_client(host: SystemHost, rng: random.Random) -> None:
    """The device is never idle for long unless who has it is stopped, and at the end nothing is left of anybody."""
    host.start_coordinator("--time-quantum", str(QUANTUM))
    before = descriptors(host)
    with kernel_starter() as start:
        victims = [*(BusyProgram(host, name) for name in ("a", "b", "c", "pair", "pair")), BusyKernel(host, start)]
        for victim in victims:
            victim.begin()
        for victim in victims:
            wait_until(lambda: host.executions(victim.pids[-1]))  # noqa: B023 - called before the next round
        size, files = resident_bytes(host), shared_memory(host)
        events, watch = RandomFaults(victims, rng), HolderSampler(host)
        watch.start()
        for _ in range(FAULT_COUNT):
            events.next()
            pause(rng.uniform(0.0, 0.2))
        while events.stopped:
            events.resume_due(time.monotonic())
            pause(0.01)
        watch.finish()
        for victim in victims:
            victim.finish()
    wait_until(lambda: not any(client["processes"] for client in host.clients().values()))
    assert not any(client["allocated"] for client in host.clients().values())
    grown = resident_bytes(host) - size
    wait_until(lambda: descriptors(host) <= before)
    assert mapped_page_count(host) == 0
    assert shared_memory(host) <= files
    assert host.status()["devices"][0]["grants"] == []
    overlap = host.overlap(*(pids(victims, client) for client in {victim.client for victim in victims}))
    idle, stuck = unexplained_idle(busy_times(host, victims), watch, events.stops)
    measurements.report_figures(
        "process-kills",
        {
            "kills": len(events.kills),
            "stops": len(events.stops),
            "of these of who had the device": sum(
                watch.held_before(client, since) for since, _, client in events.stops
            ),
            "overlapping turns, s": overlap,
            "longest time without work on the device, s": round(idle, 3),
            "longest while who had it was not stopped, s": round(stuck, 3),
            "descriptors, mapped pages and files left": 0,
            "growth of the coordinator's memory, MiB": round(grown / 2**20, 1),
        },
    )
    assert overlap == 0
    assert stuck < MAX_IDLE_SECONDS
    assert grown < 16 << 20


def shared_memory(host: SystemHost) -> set[str]:
    """The files that are in /dev/shm on a host that is not a test's: lock files, and the simulated device."""
    return {str(path) for pattern in ("locks/*", "devices*") for path in host.folder.glob(pattern)}


def pids(victims: Sequence[KillTarget], client: str) -> list[int]:
    return [pid for victim in victims if victim.client == client for pid in victim.pids]


def busy_times(host: SystemHost, victims: Sequence[KillTarget]) -> list[tuple[float, float]]:
    """When the device worked for anybody, monotonic seconds.

    Of a launch of a stopped process, which the simulated device ends when it goes on, the beginning counts.
    """
    executions = host.executions(*(pid for victim in victims for pid in victim.pids))
    return measurements.merge_intervals(
        (e.begin_ns / 1e9, min(e.end_ns / 1e9, e.begin_ns / 1e9 + 0.05)) for e in executions
    )


def unexplained_idle(
    busy: Sequence[tuple[float, float]], watch: HolderSampler, stops: Sequence[tuple[float, float, str]]
) -> tuple[float, float]:
    """The longest time in which the device did nothing, and the longest in which nobody who had it was stopped."""
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(busy)]
    gaps = [gap for gap in gaps if watch.samples[0][0] < gap[0] and gap[1] < watch.samples[-1][0]]
    longest = stuck = 0.0
    for gap in gaps:
        holders = watch.holders(*gap)
        excuses = [(since, until) for since, until, client in stops if client in holders]
        longest = max(longest, gap[1] - gap[0])
        stuck = max(stuck, gap[1] - gap[0] - measurements.covered_seconds(gap, excuses))
    return longest, stuck


class HolderSampler(threading.Thread):
    """Asks who has the device, all the time."""

    def __init__(self, host: SystemHost) -> None:
        super().__init__(daemon=True)
        self._socket = host.socket
        self._over = threading.Event()
        self.samples: list[tuple[float, frozenset[str]]] = []  # when, and which clients

    def run(self) -> None:
        with Client(self._socket) as connection:
            while not self._over.wait(0.02):
                grants = connection.request(messages.Status())["devices"][0]["grants"]
                self.samples.append((time.monotonic(), frozenset(grant["client"] for grant in grants)))

    def finish(self) -> None:
        self._over.set()
        self.join()

    def held_before(self, client: str, when: float) -> bool:
        """Whether it had the device when it was last asked for before then."""
        before = [holders for at, holders in self.samples if at < when]
        return bool(before) and client in before[-1]

    def holders(self, begin: float, end: float) -> set[str]:
        """Who has been seen to have it between these times, and just before and after."""
        near = 0.2
        return {client for at, some in self.samples if begin - near < at < end + near for client in some}


class RandomFaults:
    """What has been done to whom. `kills` are (when, client), `stops` (from, to, client), in monotonic seconds."""

    def __init__(self, victims: list[KillTarget], rng: random.Random) -> None:
        self._victims, self._rng = victims, rng
        self.stopped: dict[KillTarget, tuple[float, float]] = {}  # since when, and until when
        self.kills: list[tuple[float, str]] = []
        self.stops: list[tuple[float, float, str]] = []

    def next(self) -> None:
        victim = self._rng.choice(self._victims)
        if self._rng.random() < 0.5 and victim not in self.stopped:
            victim.send(signal.SIGSTOP)
            now = time.monotonic()
            self.stopped[victim] = (now, now + QUANTUM * self._rng.uniform(*STOP_QUANTA))
        else:
            victim.kill()
            self._note_end(victim)
            self.kills.append((time.monotonic(), victim.client))
            victim.begin()
        self.resume_due(time.monotonic())

    def resume_due(self, now: float) -> None:
        """Those whose time has come."""
        for victim, (_, until) in list(self.stopped.items()):
            if until <= now:
                victim.send(signal.SIGCONT)
                self._note_end(victim)

    def _note_end(self, victim: KillTarget) -> None:
        if stop := self.stopped.pop(victim, None):
            self.stops.append((stop[0], time.monotonic(), victim.client))
