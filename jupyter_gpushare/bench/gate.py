"""What the gate costs: nanoseconds per launch, bare and under an open gate."""

from __future__ import annotations

import statistics
from typing import Any

from . import setting

_ROUNDS = 9


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Medians over `rounds` pairs of runs, in nanoseconds: `{"bare_ns", "gated_ns", "overhead_ns", …}`.

    `bare_ns` and `gated_ns` are of launches into a queue with room, each the least over many batches of a run.
    Their difference drowns in the noise of the launch itself, so `overhead_ns` is taken from launches that the
    driver refuses at once, `bare_call_ns` and `gated_call_ns`: they pass the same gate and do nothing behind it.
    """
    rounds = rounds or _ROUNDS
    figures: dict[str, list[float]] = {name: [] for name in ("bare", "gated", "bare_call", "gated_call", "overhead")}
    with setting.coordinator(device) as environment:
        for _ in range(rounds):
            bare = setting.result(setting.start(["gate", "400"], environment, shared=False))
            gated = setting.result(setting.start(["gate", "400"], environment, shared=True))
            figures["bare"].append(bare["ns_per_launch"])
            figures["gated"].append(gated["ns_per_launch"])
            figures["bare_call"].append(bare["ns_per_call"])
            figures["gated_call"].append(gated["ns_per_call"])
            figures["overhead"].append(gated["ns_per_call"] - bare["ns_per_call"])
    medians = {f"{name}_ns": round(statistics.median(values), 2) for name, values in figures.items()}
    return {**medians, "rounds": rounds}
