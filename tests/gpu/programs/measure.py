"""Measurement and report of a program in this folder: its results and its steps per second.

A program has the same results each time, and prints `SKIP reason` if it cannot run.
The module uses the standard library only.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

SECONDS = 1.5  # of the measurement, after a third of it as warm-up


def skip(reason: str) -> NoReturn:
    print("SKIP", reason)
    sys.exit(0)


def need(*names: str) -> list[Any]:
    """Return modules, or end the program with `SKIP` if one is missing."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError as error:
            skip(f"{name} can't be imported: {error}")
    return found


def rate(step: Callable[[], object], synchronise: Callable[[], object], batch: int = 20) -> float:
    """Return the steps per second, with a synchronisation after each `batch` steps, so that the device stays busy."""
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
