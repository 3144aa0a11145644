"""Test of kernels and programs that are killed, or stopped for a while, at random moments."""

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
from ..system.system_host import MOST, WAIT, SystemHost, wait_until
from . import measurements
from .kill_targets import BusyKernel, BusyProgram, KillTarget
from .measurements import pause

FAULT_COUNT = 500 if measurements.IS_LONG else 20
MAX_IDLE_SECONDS = 2.0 if measurements.IS_LONG else 20.0  # of a device while a client could run
PAIR_PART = 0.42  # of the device's memory, so that one process of the pair does not fit beside another client either
STOP_SECONDS = (0.15, 0.6)  # bounds of the duration of a stop


@pytest.mark.timeout(measurements.TIMEOUT_SECONDS)
def test_processes_killed_and_stopped_at_random_moments_block_no_client(host: SystemHost, rng: random.Random) -> None:
    """The device is idle for long only while a client with a turn is stopped, and at the end no resource is left.

    No clients are colocated, because a process that starts again fits beside others until it has allocated its memory.
    """
    host.start_coordinator("--sharing", "exclusive", *measurements.OPTIONS)
    before = descriptors(host)
    with kernel_starter() as start:
        programs = [BusyProgram(host, name, MOST) for name in "abc"]
        programs += [BusyProgram(host, "pair", PAIR_PART) for _ in range(2)]
        targets = [*programs, BusyKernel(host, start, MOST)]
        for target in targets:
            target.begin()
        for target in targets:
            wait_until(lambda: host.executions(target.pids[-1]))  # noqa: B023 - called before the next round
        size, files = resident_bytes(host), shared_memory(host)
        faults, sampler = RandomFaults(targets, rng), GrantSampler(host)
        sampler.start()
        for _ in range(FAULT_COUNT):
            faults.next()
            pause(rng.uniform(0.0, 0.2))
        while faults.stopped:
            faults.resume_due(time.monotonic())
            pause(0.01)
        sampler.finish()
        for target in targets:
            target.finish()
    wait_until(lambda: not any(client["processes"] for client in host.clients().values()))
    assert not any(client["allocated"] for client in host.clients().values())
    grown = resident_bytes(host) - size
    wait_until(lambda: descriptors(host) <= before)
    assert mapped_page_count(host) == 0
    assert shared_memory(host) <= files
    assert host.status()["devices"][0]["grants"] == []
    overlap = host.overlap(*(pids(targets, client) for client in {target.client for target in targets}))
    idle, stuck = unexplained_idle(busy_times(host, targets), sampler, faults.stops)
    measurements.report_figures(
        "process-kills",
        {
            "kills": len(faults.kills),
            "stops": len(faults.stops),
            "of these of clients with a turn": sum(
                sampler.had_turn_before(client, since) for since, _, client in faults.stops
            ),
            "overlapping turns, s": overlap,
            "longest time without work on the device, s": round(idle, 3),
            "of it without a stopped client in its turn, s": round(stuck, 3),
            "descriptors, mapped pages and files left": 0,
            "growth of the coordinator's memory, MiB": round(grown / 2**20, 1),
        },
    )
    assert overlap == 0
    assert stuck < MAX_IDLE_SECONDS
    assert grown < 16 << 20


def shared_memory(host: SystemHost) -> set[str]:
    """Return the lock files and the files of the simulated device, which other hosts have in /dev/shm."""
    return {str(path) for pattern in ("locks/*", "devices*") for path in host.folder.glob(pattern)}


def pids(targets: Sequence[KillTarget], client: str) -> list[int]:
    return [pid for target in targets if target.client == client for pid in target.pids]


def busy_times(host: SystemHost, targets: Sequence[KillTarget]) -> list[tuple[float, float]]:
    """Return the intervals in which the device worked, in monotonic seconds.

    The simulated device ends a launch of a stopped process only after its resume, so only its first 50 ms count.
    """
    executions = host.executions(*(pid for target in targets for pid in target.pids))
    return measurements.merge_intervals(
        (e.begin_ns / 1e9, min(e.end_ns / 1e9, e.begin_ns / 1e9 + 0.05)) for e in executions
    )


def unexplained_idle(
    busy: Sequence[tuple[float, float]], sampler: GrantSampler, stops: Sequence[tuple[float, float, str]]
) -> tuple[float, float]:
    """Return the longest idle time of the device, and the longest without the time of stopped clients in turns."""
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(busy)]
    gaps = [gap for gap in gaps if sampler.samples[0][0] < gap[0] and gap[1] < sampler.samples[-1][0]]
    longest = stuck = 0.0
    for gap in gaps:
        clients = sampler.clients_in_turns(*gap)
        excuses = [(since, until) for since, until, client in stops if client in clients]
        longest = max(longest, gap[1] - gap[0])
        stuck = max(stuck, gap[1] - gap[0] - measurements.covered_seconds(gap, excuses))
    return longest, stuck


class GrantSampler(threading.Thread):
    """Thread that samples the clients with a turn."""

    def __init__(self, host: SystemHost) -> None:
        super().__init__(daemon=True)
        self._socket = host.socket
        self._over = threading.Event()
        self.samples: list[tuple[float, frozenset[str]]] = []  # time, clients

    def run(self) -> None:
        with Client(self._socket, WAIT) as connection:
            while not self._over.wait(0.02):
                grants = connection.request(messages.Status())["devices"][0]["grants"]
                self.samples.append((time.monotonic(), frozenset(grant["client"] for grant in grants)))

    def finish(self) -> None:
        self._over.set()
        self.join()

    def had_turn_before(self, client: str, when: float) -> bool:
        """Return whether the client had a turn in the last sample before a time."""
        before = [clients for at, clients in self.samples if at < when]
        return bool(before) and client in before[-1]

    def clients_in_turns(self, begin: float, end: float) -> set[str]:
        """Return the clients with a turn between two times, with a margin for the sampling."""
        margin = 0.2
        return {client for at, clients in self.samples if begin - margin < at < end + margin for client in clients}


class RandomFaults:
    """Random kills and stops, with a log of them in monotonic seconds.

    `kills` are (time, client), and `stops` are (from, to, client).
    """

    def __init__(self, targets: list[KillTarget], rng: random.Random) -> None:
        self._targets, self._rng = targets, rng
        self.stopped: dict[KillTarget, tuple[float, float]] = {}  # (from, to)
        self.kills: list[tuple[float, str]] = []
        self.stops: list[tuple[float, float, str]] = []

    def next(self) -> None:
        target = self._rng.choice(self._targets)
        if self._rng.random() < 0.5 and target not in self.stopped:
            target.send(signal.SIGSTOP)
            now = time.monotonic()
            self.stopped[target] = (now, now + self._rng.uniform(*STOP_SECONDS))
        else:
            target.kill()
            self._record_stop(target)
            self.kills.append((time.monotonic(), target.client))
            target.begin()
        self.resume_due(time.monotonic())

    def resume_due(self, now: float) -> None:
        """Resume the targets with a stop that is over."""
        for target, (_, until) in list(self.stopped.items()):
            if until <= now:
                target.send(signal.SIGCONT)
                self._record_stop(target)

    def _record_stop(self, target: KillTarget) -> None:
        if stop := self.stopped.pop(target, None):
            self.stops.append((stop[0], time.monotonic(), target.client))
