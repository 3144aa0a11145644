"""Times of the last runs of a client's cells. A cell that runs again is expected to take as long as it did then.

The times are seconds with work on the device. A cell has several names, such as the hash of its text and its ID in the
notebook. The first name with known runs counts, so an edited cell has the expectation of its earlier text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MAX_RUNS = 3  # of a cell, of which the median is expected
MAX_NAMES = 500  # the names that were used last


class CellRuns:
    """Last runs of the cells of one client."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[float]] = {}

    def expected_seconds(self, names: tuple[str, ...]) -> float | None:
        """Return the seconds that a run of the cell is expected to take; None: the cell never ran."""
        return next((median(self._runs[name]) for name in names if name in self._runs), None)

    def add(self, names: tuple[str, ...], seconds: float) -> None:
        """Add a run of the cell that took `seconds`."""
        for name in names:
            runs = self._runs.pop(name, None)
            self._runs[name] = runs = deque(maxlen=MAX_RUNS) if runs is None else runs
            runs.append(seconds)
        while len(self._runs) > MAX_NAMES:
            del self._runs[next(iter(self._runs))]


class EndedRun(NamedTuple):
    """A run of a cell: the seconds that the run took and the seconds that were expected, or None for a new cell."""

    seconds: float
    expected_seconds: float | None


@dataclass(frozen=True)
class CellRun:
    """The run of a cell that began while no other cell of its client was open."""

    names: tuple[str, ...]
    began_granted: float  # seconds that the client had had the device when the run began
    began_busy: float  # seconds for which the device had had work of the client when the run began
    expected_seconds: float | None

    def end(self, granted: float, busy: float) -> EndedRun:
        """Return the run, from the client's seconds with the device and the seconds with work there at its end.

        A client without other contenders keeps the device while its cell works on the CPU, so time with work counts.
        """
        seconds = max(0.0, min(granted - self.began_granted, busy - self.began_busy))
        return EndedRun(seconds, self.expected_seconds)
