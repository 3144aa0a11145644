"""Progress of a bench on standard error; standard output has the figures alone."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

MIN_REPORT_SECONDS = 5.0  # seconds between two lines, at least: short steps need none each

Step = TypeVar("Step")


def report_steps(steps: Sequence[Step], what: Callable[[Step], str]) -> Iterator[Step]:
    """The steps of a measurement, one after the other. Print `what` of a step when it begins, and which one it is."""
    said = -MIN_REPORT_SECONDS
    for number, step in enumerate(steps, start=1):
        if time.monotonic() >= said + MIN_REPORT_SECONDS:
            print(f"{number} of {len(steps)}: {what(step)}", file=sys.stderr, flush=True)
            said = time.monotonic()
        yield step
