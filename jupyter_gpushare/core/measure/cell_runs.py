"""Times and memory of the last runs of a client's cells. A cell that runs again is expected to need as much as then.

The times are seconds with work on the device. A cell has several names, such as the hash of its text and its ID in the
notebook. The first name with known runs counts, so an edited cell has the expectation of its earlier text.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

MAX_RUNS = 3  # of a cell, from which the expectation follows
MAX_NAMES = 500  # the names that were used last


class RunNeeds(NamedTuple):
    """The seconds of work that a run takes, and the most bytes that its client has allocated meanwhile.

    Context memory does not count.
    """

    seconds: float
    peak_bytes: int


class CellRuns:
    """Last runs of the cells of one client."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[RunNeeds]] = {}

    def expected(self, names: tuple[str, ...]) -> RunNeeds | None:
        """Return what a run of the cell is expected to need; None: the cell never ran.

        The seconds are the median of the last runs, and the bytes are the largest of them.
        """
        runs = next((self._runs[name] for name in names if name in self._runs), None)
        return RunNeeds(median(run.seconds for run in runs), max(run.peak_bytes for run in runs)) if runs else None

    def add(self, names: tuple[str, ...], run: RunNeeds) -> None:
        """Add a run of the cell that has ended."""
        for name in names:
            runs = self._runs.pop(name, None)
            self._runs[name] = runs = deque(maxlen=MAX_RUNS) if runs is None else runs
            runs.append(run)
        while len(self._runs) > MAX_NAMES:
            del self._runs[next(iter(self._runs))]


class EndedRun(NamedTuple):
    """Needs of a run of a cell, as measured and as expected; None: the cell is new."""

    needed: RunNeeds
    expected: RunNeeds | None


@dataclass(eq=False)
class CellRun:
    """The run of a cell that began while no other cell of its client was open."""

    names: tuple[str, ...]
    began_granted: float  # seconds that the client had had the device when the run began
    began_busy: float  # seconds for which the device had had work of the client when the run began
    expected: RunNeeds | None
    peak_bytes: int  # the most bytes that the client has had since the run began

    def end(self, granted: float, busy: float) -> EndedRun:
        """Return the run, from the client's seconds with the device and the seconds with work there at its end.

        A client without other contenders keeps the device while its cell works on the CPU, so time with work counts.
        """
        seconds = max(0.0, min(granted - self.began_granted, busy - self.began_busy))
        return EndedRun(RunNeeds(seconds, self.peak_bytes), self.expected)
