"""How much of it, and what came out: the short form unless `GPUSHARE_TEST_CHAOS` says `long`.

With `GPUSHARE_TEST_FIGURES=FOLDER` a test writes its figures there, as JSON and as a table.
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
TIMEOUT_SECONDS = 3600 if IS_LONG else 120  # seconds, of a test


def percentile(values: Sequence[float], part: float) -> float:
    """The value that `part` (0 to 1) of them do not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def merge_intervals(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """(begin, end) of what they cover together, in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def covered_seconds(span: tuple[float, float], spans: Iterable[tuple[float, float]]) -> float:
    """How much of `span` they cover together."""
    begin, end = span
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in merge_intervals(spans))


def pause(seconds: float) -> None:
    """Until that much later: when the next blow comes is chance, no condition to wait for."""
    threading.Event().wait(seconds)


def report_figures(name: str, figures: dict[str, Any]) -> None:
    """Print the figures, and keep them where that is wanted."""
    where = {
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Linux {platform.release()}, simulated device",
        "load": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
    }
    table = "\n".join(["| what | |", "| --- | ---: |", *(f"| {what} | {value} |" for what, value in figures.items())])
    print(f"{name}: {where}\n{table}")
    if folder := os.environ.get("GPUSHARE_TEST_FIGURES"):
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{name}.json").write_text(json.dumps({**where, **figures}, indent=1) + "\n")
        (path / f"{name}.md").write_text(f"{', '.join(map(str, where.values()))}\n\n{table}\n")
