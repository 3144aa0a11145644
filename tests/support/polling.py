"""Polling for the effects of other processes and threads."""

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
