"""What every program here does at its end: say its results and its speed. Standard library only.

A program gives the same results each time, and says `SKIP reason` where it can't run.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

SECONDS = 1.5  # of measuring, after as long a time without


def skip(reason: str) -> NoReturn:
    print("SKIP", reason)
    sys.exit(0)


def need(*names: str) -> list[Any]:
    """The modules, or the end of the program with a reason."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError as error:
            skip(f"{name} can't be imported: {error}")
    return found


def rate(step: Callable[[], object], synchronise: Callable[[], object], batch: int = 20) -> float:
    """Steps per second, the device kept busy: synchronised every `batch` steps only."""
    for seconds in (SECONDS / 3, SECONDS):
        synchronise()
        steps, began = 0, time.monotonic()
        while time.monotonic() < began + seconds:
            for _ in range(batch):
                step()
            steps += batch
            synchronise()
        ended = time.monotonic()
    return steps / (ended - began)


def report(results: Sequence[float], steps_per_second: float) -> None:
    print("RESULT", json.dumps({"results": [float(value) for value in results], "rate": steps_per_second}))
