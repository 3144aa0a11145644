"""Measurement of a process's context memory, which only the driver's account of the process includes."""

from __future__ import annotations


class ContextMemory:
    """Context memory of a process: the driver's figure for the process less the resident memory that it reports.

    The two figures are of different times. So a sample counts only while the resident memory stays the same, and the
    smaller one of two such samples is the result.
    """

    def __init__(self) -> None:
        self.bytes = 0  # 0: none, or unknown
        self._resident: int | None = None
        self._samples: list[int] = []  # of the present resident memory, at most two

    def sample(self, driver_bytes: int, resident: int) -> None:
        if resident != self._resident:
            self._resident, self._samples = resident, []
            return
        self._samples = [*self._samples[-1:], max(0, driver_bytes - resident)]
        if len(self._samples) == 2:
            self.bytes = min(self._samples)
