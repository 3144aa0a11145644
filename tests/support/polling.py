"""Waits for the effects of other processes and threads, and measurements, on a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

WAIT_SECONDS = 60.0  # default limit of a wait, on a busy machine


def wait_until(
    condition: Callable[[], Any], seconds: float = WAIT_SECONDS, what: object = "", interval: float = 0.001
) -> Any:
    """Return the first true value of `condition`, or fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or condition}"
        time.sleep(interval)
    return value


def least(measure: Callable[[], float], below: float, times: int = 8) -> float:
    """Return the least result of several runs, up to the first result below a bound.

    A busy machine makes some runs slower and none faster.
    """
    found = [measure()]
    while len(found) < times and min(found) >= below:
        found.append(measure())
    return min(found)
