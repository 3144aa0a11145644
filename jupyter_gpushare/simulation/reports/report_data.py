"""Data of one simulation for the pictures of a report: turns, waits, and the utilisation of the devices."""

from __future__ import annotations

MAX_INTERVALS = 3000  # turns, and as many waits; a picture with more is unreadable
BINS = 240  # intervals of the utilisation


class TimelineData:
    """Turns, waits and utilisation of a simulation; times in seconds.

    `turns` has the first turns as (client, device, from, until), and `waits` the first waits as (client, from, until).
    `busy` has the device seconds of work in each of BINS equal parts of the time.
    """

    def __init__(self, seconds: float) -> None:
        self.turns: list[tuple[str, str, float, float]] = []
        self.waits: list[tuple[str, float, float]] = []
        self.busy = [0.0] * BINS
        self.bin_seconds = seconds / BINS

    def add_turn(self, client: str, device: str, began: float, ended: float) -> None:
        if len(self.turns) < MAX_INTERVALS:
            self.turns.append((client, device, began, ended))

    def add_wait(self, client: str, began: float, ended: float) -> None:
        if len(self.waits) < MAX_INTERVALS:
            self.waits.append((client, began, ended))

    def add_work(self, began: float, ended: float) -> None:
        index = int(began / self.bin_seconds)
        while began < ended and index < BINS:
            until = min(ended, (index + 1) * self.bin_seconds)
            self.busy[index] += until - began
            began = until
            index += 1

    @property
    def complete_until(self) -> float:
        """The time up to which turns and waits are complete."""
        full = [intervals[-1][-1] for intervals in (self.turns, self.waits) if len(intervals) == MAX_INTERVALS]
        return min(full, default=self.bin_seconds * BINS)
