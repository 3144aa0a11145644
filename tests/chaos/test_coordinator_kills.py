"""Test of coordinators that are killed at random moments: busy clients, their results and their turns go on."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from ..system.system_host import MOST, GpuProgram, SystemHost, wait_until
from . import measurements
from .measurements import pause

KILL_COUNT = 200 if measurements.IS_LONG else 10
CLIENT_COUNT = 8
MAX_IDLE_SECONDS = 10.0 if measurements.IS_LONG else 20.0  # of the device after a kill
IMMEDIATE_KILL_PROBABILITY = 0.2  # of a kill before the clients have connected again


def is_recovered(host: SystemHost) -> bool:
    """Return whether every client has connected to the coordinator again."""
    clients = host.status()["clients"]
    return len(clients) == CLIENT_COUNT and all(len(client["processes"]) == 1 for client in clients)


@pytest.mark.timeout(measurements.TIMEOUT_SECONDS)
def test_coordinator_killed_at_random_moments_loses_no_client(host: SystemHost, rng: random.Random) -> None:
    """No client is lost, no result is wrong, no turns overlap, and the recovery is short.

    A recovery ends when every client has connected to a new coordinator; kills before that have no recovery time.
    The test starts a new coordinator at once, as a service manager or a Jupyter server does.
    The start of the coordinator is part of the recovery time.
    """
    host.start_coordinator(*measurements.OPTIONS)
    programs = busy_clients(host)
    wait_until(lambda: is_recovered(host))
    recoveries: list[float] = []
    kills: list[float] = []
    early = 0
    for number in range(KILL_COUNT):
        host.kill_coordinator()
        kills.append(time.monotonic())
        host.start_coordinator(*measurements.OPTIONS)
        if number + 1 < KILL_COUNT and rng.random() < IMMEDIATE_KILL_PROBABILITY:
            early += 1
            pause(rng.uniform(0.0, 0.3))
            continue
        wait_until(lambda: is_recovered(host))
        recoveries.append(time.monotonic() - kills[-1])
        pause(rng.uniform(0.0, 0.5))
    wait_until(lambda: sorted(host.clients()) == sorted(programs))
    for program in programs.values():
        program.stop()  # checks the results of the program and its calls
    overlap = host.overlap(*([program] for program in programs.values()))
    idle = longest_idle(host, list(programs.values()), kills)
    measurements.report_figures(
        "coordinator-kills",
        {
            "kills": KILL_COUNT,
            "of these before the clients had connected again": early,
            "busy clients": CLIENT_COUNT,
            "clients lost": CLIENT_COUNT - sum(program.process.poll() is None for program in programs.values()),
            "wrong results": 0,
            "overlapping turns, s": overlap,
            "launches checked": len(host.launches(*programs.values())),
            "recovery p50, s": round(measurements.percentile(recoveries, 0.5), 3),
            "recovery p99, s": round(measurements.percentile(recoveries, 0.99), 3),
            "recovery max, s": round(max(recoveries), 3),
            "longest time without work on the device after a kill, s": round(idle, 3),
        },
    )
    assert overlap == 0
    if measurements.IS_LONG:
        assert measurements.percentile(recoveries, 0.99) < 1
        assert max(recoveries) < 10
    assert idle < MAX_IDLE_SECONDS


def busy_clients(host: SystemHost) -> dict[str, GpuProgram]:
    """Start clients of which no two fit together, so they take turns."""
    names = [f"client{number}" for number in range(CLIENT_COUNT)]
    programs = {name: host.program(name, cuda=False) for name in names}
    for program in programs.values():
        program.start(f"cuda = Cuda(); {host.allocation(MOST)}")
        program.start_busy()
    for program in programs.values():
        program.result()
        program.result()
    return programs


def longest_idle(host: SystemHost, programs: list[GpuProgram], kills: list[float]) -> float:
    """Return the longest time without work after a kill in seconds."""
    busy = measurements.merge_intervals((e.begin_ns / 1e9, e.end_ns / 1e9) for e in host.launches(*programs))
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(busy)]
    return max(
        (begin - end for end, begin in gaps if any(end - 1e-3 < kill + 2.5 and begin > kill for kill in kills)),
        default=0.0,
    )
