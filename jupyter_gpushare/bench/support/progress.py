"""Progress of a bench on standard error, because standard output has the figures only."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

MIN_REPORT_SECONDS = 5.0  # between two lines

Step = TypeVar("Step")


def report_steps(steps: Sequence[Step], what: Callable[[Step], str]) -> Iterator[Step]:
    """Yield the steps of a measurement, and print number and description (`what`) of a step that begins."""
    reported_at = -MIN_REPORT_SECONDS
    for number, step in enumerate(steps, start=1):
        if time.monotonic() >= reported_at + MIN_REPORT_SECONDS:
            print(f"{number} of {len(steps)}: {what(step)}", file=sys.stderr, flush=True)
            reported_at = time.monotonic()
        yield step
