"""Cost of a small allocation and its release in nanoseconds, without and with the shim."""

from __future__ import annotations

import statistics
from typing import Any

from .support import harness, progress

_ROUNDS = 5
_BATCHES = "2000"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return medians over `rounds` runs in nanoseconds: `{"bare_ns", "shim_ns", "ratio", "managed_ns", …}`.

    A run takes the minimum over many batches of 16 allocations of 4 KiB and their releases.
    `bare_ns` is the time without the shim, and `shim_ns` the time with the shim in the default memory mode.
    The default mode asks the driver for unified memory, which costs `managed_ns` without the shim.
    `plain_ns` is the time with `GPUSHARE_MEMORY_MODE=plain`, in which the shim only keeps its ledger.
    `stream_bare_ns`, `stream_shim_ns` and `stream_swap_ns` are the times of stream-ordered pairs: without the shim, in
    the default mode and in mode `swap`. `stream_ratio` and `stream_swap_ratio` relate them to `stream_bare_ns`.
    """
    rounds = rounds or _ROUNDS
    figures: dict[str, list[float]] = {
        name: [] for name in ("bare", "shim", "managed", "plain", "stream_bare", "stream_shim", "stream_swap")
    }
    with harness.running_coordinator(device) as environment:
        for _ in progress.report_steps(range(rounds), lambda _: "allocations without and with the shim"):
            bare = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], environment, shared=False))
            shim = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], environment, shared=True))
            mode = {**environment, "GPUSHARE_MEMORY_MODE": "plain"}
            plain = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], mode, shared=True))
            mode = {**environment, "GPUSHARE_MEMORY_MODE": "swap"}
            swap = harness.read_result(harness.start_bench_program(["alloc", _BATCHES], mode, shared=True))
            figures["bare"].append(bare["ns_per_pair"])
            figures["managed"].append(bare["managed_ns_per_pair"])
            figures["shim"].append(shim["ns_per_pair"])
            figures["plain"].append(plain["ns_per_pair"])
            figures["stream_bare"].append(bare["stream_ns_per_pair"])
            figures["stream_shim"].append(shim["stream_ns_per_pair"])
            figures["stream_swap"].append(swap["stream_ns_per_pair"])
    medians = {name: statistics.median(values) for name, values in figures.items()}
    return {
        "bare_ns": round(medians["bare"], 1),
        "shim_ns": round(medians["shim"], 1),
        "ratio": round(medians["shim"] / medians["bare"], 3),
        "managed_ns": round(medians["managed"], 1),
        "plain_ns": round(medians["plain"], 1),
        "plain_ratio": round(medians["plain"] / medians["bare"], 3),
        "stream_bare_ns": round(medians["stream_bare"], 1),
        "stream_shim_ns": round(medians["stream_shim"], 1),
        "stream_ratio": round(medians["stream_shim"] / medians["stream_bare"], 3),
        "stream_swap_ns": round(medians["stream_swap"], 1),
        "stream_swap_ratio": round(medians["stream_swap"] / medians["stream_bare"], 3),
        "rounds": rounds,
    }
