"""What a report draws of one simulation: who held and who waited, when, and how busy the devices were."""

from __future__ import annotations

MAX_INTERVALS = 3000  # stretches of either kind that are kept: more are no picture
BINS = 240


class TimelineData:
    """`turns` are (client, device, from, until), `waits` (client, from, until), the first of each; `busy` has device
    seconds of work in each of BINS equal parts of the time."""

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
        place = int(began / self.bin_seconds)
        while began < ended and place < BINS:
            until = min(ended, (place + 1) * self.bin_seconds)
            self.busy[place] += until - began
            began = until
            place += 1

    @property
    def complete_until(self) -> float:
        """The time up to which turns and waits are complete."""
        full = [kept[-1][-1] for kept in (self.turns, self.waits) if len(kept) == MAX_INTERVALS]
        return min(full, default=self.bin_seconds * BINS)
