"""Cost of the gate: nanoseconds per launch, without the shim and with an open gate."""

from __future__ import annotations

import statistics
from typing import Any

from .support import harness, progress

_ROUNDS = 9


def measure(device: str, rounds: int, threads: int = 4) -> dict[str, Any]:
    """Return medians over `rounds` pairs of runs in nanoseconds: `{"bare_ns", "gated_ns", "overhead_ns", …}`.

    `bare_ns` and `gated_ns` are the minima over many batches of launches into a queue with room.
    The noise of a launch exceeds the difference of `bare_ns` and `gated_ns`.
    `overhead_ns` therefore is the difference of `gated_call_ns` and `bare_call_ns`.
    Both terms of that difference are times of launches that pass the gate and that the driver refuses at once.
    `threads_overhead_ns` is the median thread's overhead if `threads` threads launch at the same time.
    """
    rounds = rounds or _ROUNDS
    with harness.running_coordinator(device) as environment:
        each = [count for count in (1, threads) for _ in range(rounds)]
        pairs = [
            _pair(environment, count) for count in progress.report_steps(each, lambda n: f"launches of {n} thread(s)")
        ]
    single, threaded = pairs[:rounds], pairs[rounds:]
    medians = {name: round(statistics.median(pair[name] for pair in single), 2) for name in single[0]}
    for name in ("bare_call_ns", "gated_call_ns", "overhead_ns"):
        medians[f"threads_{name}"] = round(statistics.median(pair[name] for pair in threaded), 2)
    return {**medians, "threads": threads, "rounds": rounds}


def _pair(environment: dict[str, str], threads: int) -> dict[str, float]:
    bare, gated = (
        harness.read_result(harness.start_bench_program(["gate", "400", str(threads)], environment, shared=shared))
        for shared in (False, True)
    )
    return {
        "bare_ns": bare["ns_per_launch"],
        "gated_ns": gated["ns_per_launch"],
        "bare_call_ns": bare["ns_per_call"],
        "gated_call_ns": gated["ns_per_call"],
        "overhead_ns": gated["ns_per_call"] - bare["ns_per_call"],
    }
