"""What an allocation costs: nanoseconds per small one and its release, bare and under the shim."""

from __future__ import annotations

import statistics
from typing import Any

from . import harness, progress

_ROUNDS = 5
_BATCHES = "2000"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Medians over `rounds` runs of each, in nanoseconds: `{"bare_ns", "shim_ns", "ratio", "managed_ns", …}`.

    A run takes the least over many batches of 16 allocations of 4 KiB and their releases. `shim_ns` is in the default
    mode, which asks the driver for unified memory instead: what that costs by itself is `managed_ns`. `plain_ns` is
    with `GPUSHARE_MEMORY_MODE=plain`, where the shim only counts: the ledger and the account are all there is.
    """
    rounds = rounds or _ROUNDS
    figures: dict[str, list[float]] = {name: [] for name in ("bare", "shim", "managed", "plain")}
    with harness.running_coordinator(device) as environment:
        for _ in progress.report_steps(range(rounds), lambda _: "allocations, bare and under the shim"):
            bare = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], environment, shared=False))
            shim = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], environment, shared=True))
            mode = {**environment, "GPUSHARE_MEMORY_MODE": "plain"}
            plain = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], mode, shared=True))
            figures["bare"].append(bare["ns_per_pair"])
            figures["managed"].append(bare["managed_ns_per_pair"])
            figures["shim"].append(shim["ns_per_pair"])
            figures["plain"].append(plain["ns_per_pair"])
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return {
        "bare_ns": round(medians["bare"], 1),
        "shim_ns": round(medians["shim"], 1),
        "ratio": round(medians["shim"] / medians["bare"], 3),
        "managed_ns": round(medians["managed"], 1),
        "plain_ns": round(medians["plain"], 1),
        "plain_ratio": round(medians["plain"] / medians["bare"], 3),
        "rounds": rounds,
    }
