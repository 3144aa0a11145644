"""Recent work of a client, from the counters that the client reports about once a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from ..interface.events import Progress

WINDOW_SECONDS = 5.0  # over which launches are counted
MAX_WINDOWS = 5  # number of windows that are kept
_MAX_ONLINE_SETS = 32  # number of sets of online clients for which measurements of a client are kept

_DECAY_PER_SECOND = 0.95  # factor on measured work and blocks after a second
_WHOLE = 0.95  # part of an interval, from which on the client counts as in its turn for all of it


T = TypeVar("T")


@dataclass(frozen=True)
class _Interval:
    """Blocks launched between two readings, in `seconds` of turns. A turn may begin, or end, between the readings."""

    seconds: float
    blocks: int
    is_whole: bool
    begins_turn: bool


class LaunchWindow:
    """A client's launch rate, from its counter of blocks about once a second.

    Seconds in which the client began or ceased to launch would make it look slower. Therefore only seconds between two
    others with launches count. The beginning of a turn counts as well, because a turn begins with work. (Ours; TGS has
    jobs that never pause.)
    """

    def __init__(self) -> None:
        self.seconds = 0.0  # measured in all
        self._last: tuple[float, int] | None = None
        self._intervals: deque[_Interval] = deque(maxlen=MAX_WINDOWS + 1)

    def add(self, blocks: int, now: float, seconds: float | None = None, is_in_turn: bool = True) -> None:
        """Add a reading of the counter. A counter that went back belongs to a new process, and begins again.

        `seconds`: the part of the time since the last reading to measure, in turns; None: all of it. `is_in_turn`:
        the client's turn goes on.
        """
        if self._last is not None and now <= self._last[0]:
            return
        last, self._last = self._last, (now, blocks)
        if last is None or blocks < last[1]:
            return
        elapsed = now - last[0]
        seconds = elapsed if seconds is None else min(seconds, elapsed)
        if seconds > 0:
            self.seconds += seconds
            is_whole = seconds >= elapsed * _WHOLE
            self._intervals.append(_Interval(seconds, blocks - last[1], is_whole, not is_whole and is_in_turn))

    def resume(self) -> None:
        """Leave out the time since the last reading."""
        self._last = None

    @property
    def rate(self) -> float | None:
        """Blocks per window while the client launches; 0: it launched nothing for a window; None: unknown."""
        if not any(one.blocks for one in self._intervals):
            return 0.0 if sum(one.seconds for one in self._intervals) >= WINDOW_SECONDS * 0.99 else None
        known = list(self._intervals)
        inner = [
            one
            for at, one in enumerate(known)
            if one.begins_turn
            or (one.is_whole and 0 < at < len(known) - 1 and all(near.blocks for near in known[at - 1 : at + 2]))
        ]
        seconds = sum(one.seconds for one in inner)
        return sum(one.blocks for one in inner) / seconds * WINDOW_SECONDS if inner else None


@dataclass
class Stopwatch:
    """Time for which a state of a client has lasted, in several parts."""

    since: float | None = None  # when the present part began
    _seconds: float = 0.0  # of the parts that have ended

    def set(self, runs: bool, now: float) -> None:
        if runs and self.since is None:
            self.since = now
        elif not runs and self.since is not None:
            self._seconds += now - self.since
            self.since = None

    def seconds_at(self, at: float) -> float:
        return self._seconds + (max(0.0, at - self.since) if self.since is not None else 0.0)


@dataclass
class Activity:
    """Work and launches of a client, and its time in colocations.

    Online clients that work at once slow each other down, so launches are counted for each set of online clients.
    """

    all_launches: LaunchWindow = field(default_factory=LaunchWindow)
    window: LaunchWindow = field(default_factory=LaunchWindow)  # beside `online`
    online: frozenset[str] = frozenset()  # ids of the other online clients that share a device with the client now
    used_fraction: float = 0.0  # of its devices, between the last two reports
    exclusive_load: float | None = None  # part of its turns used while no other client runs, exponentially weighted
    colocated: Stopwatch = field(default_factory=Stopwatch)  # with any client
    packed: Stopwatch = field(default_factory=Stopwatch)  # with clients that no limit holds back for this one
    _last: Progress | None = None
    _read_at: float = 0.0
    _granted_seconds: float = 0.0  # of its turns, at the last report
    _colocated_at_report: float = 0.0  # colocated seconds at the last report
    _worked: float = 0.0  # seconds of work on its devices; each second counts as `_DECAY_PER_SECOND` of the next one
    _blocks: float = 0.0  # launched in the same time, weighted likewise
    _windows: dict[frozenset[str], LaunchWindow] = field(default_factory=dict)  # by `online`

    def __post_init__(self) -> None:
        self._windows[self.online] = self.window

    def set_online(self, online: frozenset[str]) -> None:
        if online != self.online:
            self.online = online
            self.window = value_of_set(self._windows, online, LaunchWindow)
            self.window.resume()

    def add(
        self, event: Progress, at: float, granted_seconds: float, is_in_turn: bool, measured_exclusively: bool
    ) -> bool:
        """Add counters that were read at the time `at`, and return whether they are new.

        `granted_seconds`: sum of the client's turns up to then. `is_in_turn`: the client has a turn then.
        `measured_exclusively`: the colocated clients are all but stopped, until the exclusive rate is known.
        """
        last = self._last
        if last is not None and at <= self._read_at:
            return False
        if last is not None:
            worked, blocks = event.gpu_seconds - last.gpu_seconds, event.blocks - last.blocks
            self.used_fraction = max(0.0, worked) / (at - self._read_at)
            if self.colocated.since is None or measured_exclusively:
                self._add_exclusive_load(max(0.0, worked), granted_seconds - self._granted_seconds)
            self._worked = _DECAY_PER_SECOND * self._worked + max(0.0, worked)
            self._blocks = _DECAY_PER_SECOND * self._blocks + max(0, blocks)
        self._last, self._read_at = event, at
        colocated = self.colocated.seconds_at(at)
        seconds = granted_seconds - self._granted_seconds
        is_colocated = colocated - self._colocated_at_report >= _WHOLE * seconds  # in all of its turns
        for window in (self.all_launches, self.window):
            window.add(event.blocks, at, seconds if is_colocated else 0.0, is_in_turn)
        self._granted_seconds, self._colocated_at_report = granted_seconds, colocated
        return True

    def _add_exclusive_load(self, worked: float, seconds: float) -> None:
        if seconds <= 0:
            return
        load = min(1.0, worked / seconds)
        self.exclusive_load = load if self.exclusive_load is None else 0.7 * self.exclusive_load + 0.3 * load

    @property
    def blocks_per_work_second(self) -> float:
        """Blocks per second of work; 0: unknown. Work is sampled, so seconds with little of it must count little."""
        return self._blocks / self._worked if self._worked and self._blocks else 0.0


def value_of_set(values: dict[frozenset[str], T], online: frozenset[str], make: Callable[[], T]) -> T:
    """Return the value for a set of online clients, and drop the value that has not been used for longest."""
    value = values.pop(online) if online in values else make()
    values[online] = value
    if len(values) > _MAX_ONLINE_SETS:
        del values[next(iter(values))]
    return value


def highest_rate(rates: Iterable[float]) -> float:
    """Return the highest mean of two neighbours, so that one odd window does not count for much; 0: no rates."""
    return max(((one + other) / 2 for one, other in pairwise(rates)), default=0.0)
