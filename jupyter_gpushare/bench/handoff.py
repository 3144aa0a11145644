"""How long nobody runs when the turn changes: two busy clients, nothing to move."""

from __future__ import annotations

import itertools
import statistics
from typing import Any

from . import setting

_QUANTUM = 0.02
_SECONDS = 10.0


def measure(device: str, rounds: int) -> dict[str, Any]:
    """`{"p50_us", "p99_us", "handovers"}`: from the last launch of one client to the first of the next.

    Two programs launch and wait for each launch in a tight loop, with turns of 20 ms, for `rounds` seconds (0: 10).
    """
    seconds = float(rounds or _SECONDS)
    with setting.coordinator(device, "--time-quantum", str(_QUANTUM)) as environment:
        programs = [setting.start(["handoff", str(seconds)], environment, shared=True) for _ in range(2)]
        results = [setting.result(program) for program in programs]
    gaps = sorted(gap / 1000 for gap in handovers([result["runs"] for result in results]))
    if len(gaps) < 10:
        raise RuntimeError(f"only {len(gaps)} turns changed in {seconds:g} s: the two programs did not take turns")
    p99 = gaps[min(len(gaps) - 1, int(len(gaps) * 0.99))]
    return {"p50_us": round(statistics.median(gaps), 1), "p99_us": round(p99, 1), "handovers": len(gaps)}


def handovers(programs: list[list[list[int]]]) -> list[int]:
    """Nanoseconds between the last launch of a program's run and the first of another's that follows it."""
    runs = sorted((first, last, number) for number, rows in enumerate(programs) for first, last in rows)
    return [later[0] - run[1] for run, later in itertools.pairwise(runs) if run[2] != later[2]]
