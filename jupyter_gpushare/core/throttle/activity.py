"""Recent work of a client, from the counters that the client reports about once a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from ..interface.events import Progress

WINDOW_SECONDS = 5.0  # over which launches are counted
MAX_WINDOWS = 5  # number of windows that are kept

_DECAY_PER_SECOND = 0.95  # factor on measured work and blocks after a second
_EXCLUSIVE_AFTER_SECONDS = MAX_WINDOWS + 1.0  # after a colocation, until a launch window is exclusive


class LaunchWindow:
    """A client's launch rate, from its counter of blocks about once a second.

    Seconds in which the client began or ceased to launch would make it look slower. Therefore only seconds between two
    others with launches count. (Ours; TGS has jobs that never pause.)
    """

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None
        self._intervals: deque[tuple[float, int]] = deque(maxlen=MAX_WINDOWS + 1)  # seconds, blocks

    def add(self, blocks: int, now: float) -> None:
        """Add a reading of the counter. A counter that went back belongs to a new process, and begins again."""
        if self._last is not None and now <= self._last[0]:
            return
        if self._last is not None and blocks >= self._last[1]:
            self._intervals.append((now - self._last[0], blocks - self._last[1]))
        self._last = (now, blocks)

    @property
    def rate(self) -> float | None:
        """Blocks per window while the client launches; 0: it launched nothing for a window; None: unknown."""
        if not any(blocks for _, blocks in self._intervals):
            return 0.0 if sum(seconds for seconds, _ in self._intervals) >= WINDOW_SECONDS * 0.99 else None
        known = list(self._intervals)
        inner = [known[at] for at in range(1, len(known) - 1) if all(blocks for _, blocks in known[at - 1 : at + 2])]
        seconds = sum(seconds for seconds, _ in inner)
        return sum(blocks for _, blocks in inner) / seconds * WINDOW_SECONDS if inner else None


@dataclass
class Activity:
    """Work and launches of a client, and its time in colocations."""

    window: LaunchWindow = field(default_factory=LaunchWindow)
    used_fraction: float = 0.0  # of its devices, between the last two reports
    exclusive_load: float | None = None  # `used_fraction` while no other client runs, exponentially weighted
    colocated_since: float | None = None
    _exclusive_rates: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_WINDOWS))  # outside colocations
    _last: Progress | None = None
    _read_at: float = 0.0
    _worked: float = 0.0  # seconds of work on its devices; each second counts as `_DECAY_PER_SECOND` of the next one
    _blocks: float = 0.0  # launched in the same time, weighted likewise
    _colocated_seconds: float = 0.0  # in colocations that have ended
    _colocation_ended_at: float = float("-inf")

    def add(self, event: Progress, at: float, measured_exclusively: bool) -> bool:
        """Add counters that were read at the time `at`, and return whether they are new.

        `measured_exclusively`: the colocated clients are all but stopped, until the exclusive rate is known.
        """
        last = self._last
        if last is not None and at <= self._read_at:
            return False
        if last is not None:
            worked, blocks = event.gpu_seconds - last.gpu_seconds, event.blocks - last.blocks
            self.used_fraction = max(0.0, worked) / (at - self._read_at)
            if self.colocated_since is None or measured_exclusively:
                self.exclusive_load = (
                    self.used_fraction
                    if self.exclusive_load is None
                    else 0.7 * self.exclusive_load + 0.3 * self.used_fraction
                )
            self._worked = _DECAY_PER_SECOND * self._worked + max(0.0, worked)
            self._blocks = _DECAY_PER_SECOND * self._blocks + max(0, blocks)
        self._last, self._read_at = event, at
        self.window.add(event.blocks, at)
        rate = self.window.rate
        if rate and self.colocated_since is None and at >= self._colocation_ended_at + _EXCLUSIVE_AFTER_SECONDS:
            self._exclusive_rates.append(rate)
        return True

    def set_colocated(self, colocated: bool, now: float) -> None:
        if colocated and self.colocated_since is None:
            self.colocated_since = now
        elif not colocated and self.colocated_since is not None:
            self._colocated_seconds += now - self.colocated_since
            self.colocated_since, self._colocation_ended_at = None, now

    def colocated_seconds_at(self, at: float) -> float:
        return self._colocated_seconds + (
            max(0.0, at - self.colocated_since) if self.colocated_since is not None else 0.0
        )

    @property
    def blocks_per_work_second(self) -> float:
        """Blocks per second of work; 0: unknown. Work is sampled, so seconds with little of it must count little."""
        return self._blocks / self._worked if self._worked and self._blocks else 0.0

    @property
    def exclusive_rate(self) -> float | None:
        """Blocks per window outside colocations; None: unknown."""
        return highest_rate(self._exclusive_rates) or None


def highest_rate(rates: Iterable[float]) -> float:
    """Return the highest mean of two neighbours, so that one odd window does not count for much; 0: no rates."""
    return max(((one + other) / 2 for one, other in pairwise(rates)), default=0.0)
