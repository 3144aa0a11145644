"""What the gate costs: nanoseconds per launch, bare and under an open gate."""

from __future__ import annotations

import statistics
from typing import Any

from . import harness, progress

_ROUNDS = 9


def measure(device: str, rounds: int, threads: int = 4) -> dict[str, Any]:
    """Medians over `rounds` pairs of runs, in nanoseconds: `{"bare_ns", "gated_ns", "overhead_ns", …}`.

    `bare_ns` and `gated_ns` are of launches into a queue with room, each the least over many batches of a run.
    Their difference drowns in the noise of the launch itself, so `overhead_ns` is taken from launches that the
    driver refuses at once, `bare_call_ns` and `gated_call_ns`: they pass the same gate and do nothing behind it.
    `threads_overhead_ns` is the same for the median one of so many threads that launch at the same time.
    """
    rounds = rounds or _ROUNDS
    with harness.running_coordinator(device) as environment:
        each = [count for count in (1, threads) for _ in range(rounds)]
        pairs = [
            _pair(environment, count) for count in progress.report_steps(each, lambda n: f"launches of {n} thread(s)")
        ]
    alone, together = pairs[:rounds], pairs[rounds:]
    medians = {name: round(statistics.median(pair[name] for pair in alone), 2) for name in alone[0]}
    for name in ("bare_call_ns", "gated_call_ns", "overhead_ns"):
        medians[f"threads_{name}"] = round(statistics.median(pair[name] for pair in together), 2)
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
