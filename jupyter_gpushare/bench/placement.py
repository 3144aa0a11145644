"""`bench placement`: what the placement strategies leave unusable on the openb trace, in simulation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..simulation import fragmentation
from . import progress

TRACES_VARIABLE = "GPUSHARE_TRACES"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Each strategy fills the trace's cluster, `rounds` times with other draws (3). Simulated: no device is used.

    Raises RuntimeError when `$GPUSHARE_TRACES` names no folder with the trace.
    """
    folder = os.environ.get(TRACES_VARIABLE, "")
    if not folder:
        raise RuntimeError(
            f"{TRACES_VARIABLE} is not set: allowed is a folder with {fragmentation.PODS}, {fragmentation.NODES}"
        )
    try:
        trace = fragmentation.read(Path(folder))
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    figures: dict[str, Any] = {"devices": sum(trace.nodes), "device": "simulated"}
    for strategy in progress.report_steps(("spread", "pack", "fgd"), str):
        runs = [fragmentation.measure(trace, strategy, seed) for seed in range(1, (rounds or 3) + 1)]
        for name in ("allocated", "failed", "fragmented"):
            figures[f"{strategy}_{name}_percent"] = round(sum(run[name] for run in runs) / len(runs) * 100, 2)
        figures[f"{strategy}_microseconds"] = round(sum(run["microseconds"] for run in runs) / len(runs), 1)
    return figures
