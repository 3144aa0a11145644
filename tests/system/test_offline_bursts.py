"""Test of two online programs with bursts of work beside an offline program, under the shipped settings.

Times are a tenth of those of the bursts of 30 s in `docs/how-to/policies.md`. A busy processor delays launches. So the
loss is a time, in which the device works for the offline program while an online program has work or is due to launch.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pytest

from ..native.simlog import Execution
from .system_host import MIB, GpuProgram, SystemHost, stop_all

DEVICE_BYTES = 256 * MIB
PART = 0.25  # of that memory, for each program
LAUNCH = 0.002  # seconds
BURST_LAUNCHES = 1500
RESTS = (3.0, 3.9)  # seconds between the bursts of each online program
LEARNING_SECONDS, MEASURED_SECONDS = 20.0, 40.0
MAX_LOSS = 0.05  # of the online programs' work
QUOTA_ROOM = 4 * MIB  # beyond the memory of the offline program
OUT_OF_MEMORY = 2


def due_intervals(launches: Sequence[Execution], rest: float) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of each time in which a program waits for its next launch, in ns."""
    for number, (before, after) in enumerate(pairwise(launches), 1):
        due = before.end_ns + (round(rest * 1e9) if number % BURST_LAUNCHES == 0 else 0)
        if after.begin_ns > due:
            yield due, after.begin_ns


def timeline(
    host: SystemHost, online: Sequence[GpuProgram], offline: GpuProgram, since: int
) -> Iterator[tuple[float, Counter[str]]]:
    """Yield the length of each interval in seconds, and the number of programs with each kind of work in it."""
    edges: list[tuple[int, int, str]] = []

    def add(kind: str, intervals: Iterable[tuple[int, int]]) -> None:
        for begin, end in intervals:
            if begin >= since:
                edges.extend(((begin, 1, kind), (end, -1, kind)))

    for program, rest in zip(online, RESTS, strict=True):
        launches = host.launches(program)[1:]  # without the first one, which fills the array
        add("online", ((one.begin_ns, one.end_ns) for one in launches))
        add("due", due_intervals(launches, rest))
    add("offline", ((one.begin_ns, one.end_ns) for one in host.launches(offline)))
    edges.sort()
    present: Counter[str] = Counter()
    for (begin, step, kind), (end, _, _) in pairwise(edges):
        present[kind] += step
        yield (end - begin) / 1e9, present


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_bursts_of_online_programs_lose_little_to_an_offline_one(default_settings_host: SystemHost) -> None:
    """Memory of mode `plain` cannot move, so the three programs are colocated."""
    host, memory = default_settings_host, {"part": PART, "GPUSHARE_MEMORY_MODE": "plain"}
    quota = f"service=offline memory={int(PART * DEVICE_BYTES) + QUOTA_ROOM}"
    offline = host.program("offline", quota, **memory)
    online = [host.program(name, "service=online", **memory) for name in ("one", "two")]
    offline.busy(launch=LAUNCH)
    for program, rest in zip(online, RESTS, strict=True):
        program.start_busy(launch=LAUNCH, sync_every=8, burst_launches=BURST_LAUNCHES, rest=rest)
    for program in online:
        program.result(60.0)
    began, resident = time.monotonic(), 0
    while time.monotonic() < began + LEARNING_SECONDS + MEASURED_SECONDS:
        resident = max(resident, sum(host.page(program)["resident"] for program in (*online, offline)))
        time.sleep(0.2)
    assert resident <= DEVICE_BYTES
    stop_all(*online, offline)
    assert offline.run(f"cuda.alloc({2 * QUOTA_ROOM})[0]") == OUT_OF_MEMORY
    since = round((began + LEARNING_SECONDS) * 1e9)
    lost = worked = left = 0.0
    for seconds, present in timeline(host, online, offline, since):
        if present["online"] and present["offline"]:  # the device divides its time
            lost += seconds / (present["online"] + present["offline"])
        elif present["due"] and present["offline"]:
            lost += seconds
        worked += seconds * (present["online"] > 0)
        left += seconds * (present["offline"] > 0)
    assert lost <= MAX_LOSS * (worked + lost), (lost, worked)
    assert left > 0.0
