"""Unusable part of a cluster by placement strategy, in a simulation of the openb trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..simulation.cluster import fragmentation
from .support import progress

TRACES_VARIABLE = "GPUSHARE_TRACES"


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Fill the trace's cluster with each strategy, `rounds` times (0: 3) with other draws, without using a device.

    Raises RuntimeError without `$GPUSHARE_TRACES`, and for an unreadable or invalid trace.
    """
    folder = os.environ.get(TRACES_VARIABLE, "")
    if not folder:
        raise RuntimeError(
            f"{TRACES_VARIABLE} is not set: set it to a folder with {fragmentation.PODS} and {fragmentation.NODES}"
        )
    try:
        trace = fragmentation.read(Path(folder))
    except OSError as error:
        raise RuntimeError(
            f"{TRACES_VARIABLE}={folder}: cannot read {error.filename}: {error.strerror}; "
            f"needed is a folder with {fragmentation.PODS} and {fragmentation.NODES}"
        ) from None
    except ValueError as error:
        raise RuntimeError(str(error)) from None
    figures: dict[str, Any] = {"devices": sum(trace.nodes), "device": "simulated"}
    for strategy in progress.report_steps(("spread", "pack", "fgd"), str):
        runs = [fragmentation.measure(trace, strategy, seed) for seed in range(1, (rounds or 3) + 1)]
        for name in ("allocated", "failed", "fragmented"):
            figures[f"{strategy}_{name}_percent"] = round(sum(run[name] for run in runs) / len(runs) * 100, 2)
        figures[f"{strategy}_microseconds"] = round(sum(run["microseconds"] for run in runs) / len(runs), 1)
    return figures
