"""The coordinator is killed again and again, at random moments, under busy clients."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from ..system.host import Host, Program, eventually
from . import figures
from .figures import pause

KILLS = 200 if figures.LONG else 10
CLIENTS = 8
QUANTUM = "0.05"
AT_ONCE = 0.2  # so many kills hit a coordinator that has not taken over everything yet


def taken_over(host: Host) -> bool:
    """Whether the coordinator knows every client again, and each is connected to it."""
    clients = host.status()["clients"]
    return len(clients) == CLIENTS and all(len(client["processes"]) == 1 for client in clients)


@pytest.mark.timeout(figures.TIMEOUT)
def test_killed_at_random_moments(host: Host, dice: random.Random) -> None:
    """Nobody is lost, no result is wrong, no two turns overlap, and soon all is as before.

    A kill is recovered from when every client is connected to a new coordinator; kills before that have no time. A new
    coordinator is started at once, as by a service manager or a Jupyter server; its own start is part of the time.
    """
    host.start_coordinator("--time-quantum", QUANTUM)
    programs = busy_clients(host)
    eventually(lambda: taken_over(host))
    recoveries: list[float] = []
    kills: list[float] = []
    early = 0
    for number in range(KILLS):
        host.kill_coordinator()
        kills.append(time.monotonic())
        host.start_coordinator("--time-quantum", QUANTUM)
        if number + 1 < KILLS and dice.random() < AT_ONCE:
            early += 1
            pause(dice.uniform(0.0, 0.3))
            continue
        eventually(lambda: taken_over(host))
        recoveries.append(time.monotonic() - kills[-1])
        pause(dice.uniform(0.0, 0.5))
    eventually(lambda: sorted(host.clients()) == sorted(programs))
    for program in programs.values():
        program.stop()  # its results are right, and none of its calls has failed
    overlap = host.overlap(*([program] for program in programs.values()))
    idle = longest_idle(host, list(programs.values()), kills)
    figures.tell(
        "coordinator-kills",
        {
            "kills": KILLS,
            "of these before the new one had taken over": early,
            "busy clients": CLIENTS,
            "clients lost": CLIENTS - sum(program.process.poll() is None for program in programs.values()),
            "wrong results": 0,
            "overlapping turns, s": overlap,
            "launches checked": len(host.executions(*programs.values())),
            "recovery p50, s": round(figures.percentile(recoveries, 0.5), 3),
            "recovery p99, s": round(figures.percentile(recoveries, 0.99), 3),
            "recovery max, s": round(max(recoveries), 3),
            "longest time without work on the device after a kill, s": round(idle, 3),
        },
    )
    assert overlap == 0
    if figures.LONG:
        assert figures.percentile(recoveries, 0.99) < 1
    assert max(recoveries) < 10
    assert idle < 10


def busy_clients(host: Host) -> dict[str, Program]:
    names = [f"client{number}" for number in range(CLIENTS)]
    programs = {name: host.program(name, cuda=False) for name in names}
    for program in programs.values():
        program.start("cuda = Cuda()")
        program.start_busy()
    for program in programs.values():
        program.result()
        program.result()
    return programs


def longest_idle(host: Host, programs: list[Program], kills: list[float]) -> float:
    """Seconds from a kill, or from the last work before one, to the next work."""
    busy = figures.merged((e.begin_ns / 1e9, e.end_ns / 1e9) for e in host.executions(*programs))
    gaps = [(end, begin) for (_, end), (begin, _) in itertools.pairwise(busy)]
    return max(
        (begin - end for end, begin in gaps if any(end - 1e-3 < kill + 2.5 and begin > kill for kill in kills)),
        default=0.0,
    )
