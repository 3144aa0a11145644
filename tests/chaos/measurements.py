"""Length of the chaos tests, and calculation and output of their figures.

`GPUSHARE_TEST_CHAOS=long` selects the long form.
The short form has the shipped defaults, and the long form has short turns, so that faults meet many changes of turns.
With `GPUSHARE_TEST_FIGURES=FOLDER`, a test writes its figures to the folder as JSON.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

IS_LONG = os.environ.get("GPUSHARE_TEST_CHAOS") == "long"
OPTIONS = ("--time-quantum", "0.05") if IS_LONG else ()  # of the coordinator
TIMEOUT_SECONDS = 3600 if IS_LONG else 300  # of a test


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that the fraction `part` of the values does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def merge_intervals(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as disjoint (begin, end) in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def covered_seconds(span: tuple[float, float], spans: Iterable[tuple[float, float]]) -> float:
    """Return the seconds of `span` that the intervals `spans` cover together."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in merge_intervals(spans))


def pause(seconds: float) -> None:
    """Wait between two faults. No condition ends this wait earlier."""
    threading.Event().wait(seconds)


def report_figures(name: str, figures: dict[str, Any]) -> None:
    """Print the figures, and write them to the folder of the figures if there is one."""
    setting = {
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Linux {platform.release()}, simulated device",
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }
    table = "\n".join(["| what | |", "| --- | ---: |", *(f"| {what} | {value} |" for what, value in figures.items())])
    print(f"{name}: {setting}\n{table}")
    if folder := os.environ.get("GPUSHARE_TEST_FIGURES"):
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{name}.json").write_text(json.dumps({**setting, **figures}, indent=1) + "\n")
        (path / f"{name}.md").write_text(f"{', '.join(map(str, setting.values()))}\n\n{table}\n")
