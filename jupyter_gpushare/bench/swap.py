"""Speed of eviction and restore at changes of turns, against plain pinned copies in the same run."""

from __future__ import annotations

from typing import Any

from .support import memory_holders, progress

_ROUNDS = 4
_BLOCK_BYTES = 64 << 20  # as MAX_BLOCK_BYTES in native/shim/memory/swap/blocks.h
_MEMORY_KINDS = {"swap_pinned": "swap", "swap_pageable": "swap", "unified": "unified"}


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return GB/s of device time for each kind of memory, while two clients with 0.7 of the device take turns.

    `…_first_out` is the first eviction, and `…_out` and `…_in` are the evictions and restores after it.
    `…_fraction` figures are fractions of the pinned copies `copy_out` and `copy_in`.
    `call_…_us` are the real microseconds of the driver's calls on a block's mapping (64 MiB, or an eighth of a smaller
    device), which no simulated device models.
    """
    rounds = max(2, rounds or _ROUNDS)
    figures: dict[str, Any] = {"card": f"simulated, {memory_holders.CARD_NAME}" if device == "sim" else "real"}
    for kind, mode in progress.report_steps(list(_MEMORY_KINDS.items()), lambda kind: f"memory of the kind {kind[0]}"):
        for name, value in _measure(device, mode, kind == "swap_pinned", rounds).items():
            if name.startswith("copy"):
                figures[name] = max(figures.get(name, 0.0), value)
            elif name.startswith("call"):
                figures[name] = min(figures.get(name, value), value)
            else:
                figures[f"{kind}_{name}"] = value
    for kind in _MEMORY_KINDS:
        for way in ("out", "in"):
            figures[f"{kind}_{way}_fraction"] = round(figures[f"{kind}_{way}"] / figures[f"copy_{way}"], 3)
    return figures


def _measure(device: str, mode: str, pinned: bool, rounds: int) -> dict[str, float]:
    cap, slowed = memory_holders.shared_bytes_and_time_factor(device)
    size = int(cap * 0.7) // (cap // 32) * (cap // 32)
    options = ["--time-quantum", "3600", *(["--pinned-memory", f"{size >> 20}MiB"] if pinned else [])]
    with (
        memory_holders.bench_host(device, *options) as environment,
        memory_holders.two_holders(environment, size, cap // 32, "--memory-mode", mode) as programs,
    ):
        seen = []
        for _ in range(rounds + 1):
            for program in programs:
                program.run_command("sweep", 0.001)
                memory_holders.release_turn(environment, program.label)
            seen.append(memory_holders.transferred(environment, "one"))
        programs[0].run_command("sweep", 0.001)
        copies = programs[0].run_command("copies", cap // 8, 5)
        calls = programs[0].run_command("mappings", min(cap // 8, _BLOCK_BYTES), 20)
    first, last = seen[1], seen[-1]
    speed = slowed / 1e9
    return {
        "first_out": round(_rate(seen[0], first, "evicted") * speed, 2),
        "out": round(_rate(first, last, "evicted") * speed, 2),
        "in": round(_rate(first, last, "restored") * speed, 2),
        "copy_out": round(copies["to_host"] * speed, 2),
        "copy_in": round(copies["to_device"] * speed, 2),
        **{f"call_{name}_us": round(seconds * 1e6, 1) for name, seconds in calls.items()},
    }


def _rate(before: dict[str, float], after: dict[str, float], way: str) -> float:
    seconds = after[f"{way}_seconds"] - before[f"{way}_seconds"]
    if seconds <= 0:
        raise RuntimeError("no memory was moved: the turns did not change, or the memory of both clients fits")
    return (after[f"{way}_bytes"] - before[f"{way}_bytes"]) / seconds
