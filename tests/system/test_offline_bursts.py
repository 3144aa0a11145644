"""Test of online programs with bursts of work beside offline programs, in each memory mode, under the shipped settings.

A busy processor delays launches within a burst. So the loss is a time, in which the device works for an offline program
while an online program has work or is due to launch. The wait of a burst for its first launch counts in any case.
Memory of offline programs may have to leave before that launch, and memory of the online program to return.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from ..native.simlog import Execution
from .system_host import MIB, GpuProgram, SystemHost, stop_all

DEVICE_BYTES = 256 * MIB
LINK = "1GiB/s"  # in each direction, so that memory takes longer to move than the processor to copy it
LAUNCH = 0.002  # seconds
SYNC_EVERY = 8  # launches
MAX_LOSS = 0.05  # of the online programs' work
MIN_PART = 0.8  # of the time that the online programs leave
QUOTA_ROOM = 4 * MIB  # beyond the memory of an offline program
OUT_OF_MEMORY = 2


@dataclass(frozen=True)
class Programs:
    """Numbers of programs, and the memory of each as a part of the device's; `burst` and `rest` are in seconds."""

    mode: str
    online: int
    offline: int
    part: float
    burst: float
    learning: float  # seconds in which the coordinator measures rates, or the costs of returns
    measured: float
    min_part: float = MIN_PART

    def __str__(self) -> str:
        return f"{self.mode}, {self.online} online, {self.offline} offline, {self.burst:g} s"

    @property
    def rests(self) -> list[float]:
        """Seconds between the bursts of each online program, so that their bursts meet at all times."""
        return [self.burst * (1 + 0.3 * number) for number in range(self.online)]

    @property
    def burst_launches(self) -> int:
        return int(self.burst / LAUNCH) // SYNC_EVERY * SYNC_EVERY


# Three contexts take 54 MiB. Two clients with 0.37 of the device fit beside these, and two with 0.5 do not.
CASES = [
    Programs("plain", 1, 2, 0.25, 10.0, 40.0, 80.0),  # with bursts of 3 s the simulated loss is 4.9 %
    Programs("plain", 2, 1, 0.25, 3.0, 20.0, 40.0),
    # The offline programs also move memory for each other, which takes three times as long on a busy processor.
    Programs("swap", 1, 2, 0.5, 10.0, 40.0, 80.0, min_part=0.65),
    Programs("swap", 2, 1, 0.37, 10.0, 40.0, 80.0),
    Programs("unified", 1, 2, 0.5, 10.0, 40.0, 80.0),
    Programs("unified", 2, 1, 0.37, 10.0, 40.0, 80.0),
]


def due_intervals(launches: Sequence[Execution], rest: float, burst_launches: int) -> Iterator[tuple[int, int, bool]]:
    """Yield begin and end of each time in which a program waits for its next launch, in ns, and if it has rested."""
    for number, (before, after) in enumerate(pairwise(launches), 1):
        has_rested = number % burst_launches == 0
        due = before.end_ns + (round(rest * 1e9) if has_rested else 0)
        if after.begin_ns > due:
            yield due, after.begin_ns, has_rested


def timeline(
    host: SystemHost, case: Programs, online: Sequence[GpuProgram], offline: Sequence[GpuProgram], since: int
) -> Iterator[tuple[float, Counter[str]]]:
    """Yield the length of each interval in seconds, and the number of programs with each kind of work in it."""
    edges: list[tuple[int, int, str]] = []

    def add(kind: str, intervals: Iterable[tuple[int, int]]) -> None:
        for begin, end in intervals:
            if begin >= since:
                edges.extend(((begin, 1, kind), (end, -1, kind)))

    for program, rest in zip(online, case.rests, strict=True):
        launches = host.launches(program)[1:]  # without the first one, which fills the array
        due = list(due_intervals(launches, rest, case.burst_launches))
        add("online", ((one.begin_ns, one.end_ns) for one in launches))
        add("due", ((begin, end) for begin, end, has_rested in due if not has_rested))
        add("returning", ((begin, end) for begin, end, has_rested in due if has_rested))
    add("offline", ((one.begin_ns, one.end_ns) for one in host.launches(*offline)))
    edges.sort()
    present: Counter[str] = Counter()
    for (begin, step, kind), (end, _, _) in pairwise(edges):
        present[kind] += step
        yield (end - begin) / 1e9, present


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_bursts_of_online_programs_lose_little_and_leave_their_pauses(host: SystemHost, case: Programs) -> None:
    """Memory of mode `plain` cannot move, so these programs are colocated. The others move memory, or spill."""
    host.config = host.folder / "parameters"
    host.config.write_text(f"[device]\nmemory = {DEVICE_BYTES}\nh2d_bandwidth = {LINK}\nd2h_bandwidth = {LINK}\n")
    host.start_coordinator()
    size, environment = int(case.part * DEVICE_BYTES), {"GPUSHARE_MEMORY_MODE": case.mode}
    quota = f"service=offline memory={size + QUOTA_ROOM}"
    offline = [host.program(f"offline {number}", quota, **environment) for number in range(case.offline)]
    online = [host.program(f"online {number}", "service=online", **environment) for number in range(case.online)]
    for program in (*offline, *online):
        program.run(f"array = cuda.alloc({size})[1]")
        program.run(f"check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({size})) or cuda.cuCtxSynchronize())", 60.0)
    for program, rest in zip(online, case.rests, strict=True):
        program.start_busy(launch=LAUNCH, sync_every=SYNC_EVERY, burst_launches=case.burst_launches, rest=rest)
    for program in online:
        program.result(60.0)
    for program in offline:
        program.start_busy(launch=LAUNCH)
    began, resident = time.monotonic(), 0
    while time.monotonic() < began + case.learning + case.measured:
        resident = max(resident, sum(host.page(program)["resident"] for program in (*online, *offline)))
        time.sleep(0.2)
    for program in offline:
        program.result(60.0)
    stop_all(*online, *offline)
    if case.mode != "unified":  # reports of this mode are estimates
        assert resident <= DEVICE_BYTES
    assert [one.run(f"cuda.alloc({2 * QUOTA_ROOM})[0]") for one in offline] == [OUT_OF_MEMORY] * case.offline
    lost = worked = offline_worked = passed = 0.0
    for seconds, present in timeline(host, case, online, offline, round((began + case.learning) * 1e9)):
        if present["online"] and present["offline"]:  # the device divides its time
            lost += seconds / (present["online"] + present["offline"])
        elif present["returning"] or (present["due"] and present["offline"]):
            lost += seconds
        passed += seconds
        worked += seconds * (present["online"] > 0)
        offline_worked += seconds * (present["offline"] > 0 and present["online"] == 0)
    assert lost <= MAX_LOSS * (worked + lost), (lost, worked)
    assert offline_worked >= case.min_part * (passed - worked - lost), (offline_worked, passed, worked, lost)
