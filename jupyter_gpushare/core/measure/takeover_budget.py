"""Budget of the time that an online client loses to turns of offline clients whose memory does not fit beside its own.

Such a turn makes the online client wait at its return, until offline memory has left and its own memory is back. The
budget is a token bucket: the client earns a part of all time, with and without work, and spends the time that it has
lost. So the loss of throughput stays below that part. The bucket holds two returns, so an offline client gets a turn
after a long pause in any case.

A return costs the same after a long turn as after a short one. So an offline turn begins in the first half of a pause,
by the mean of the earlier pauses, or when the pause is twice as long as the mean. The memory of the offline client also
takes about the time of a return to come. So pauses that are hardly longer on average than one of the last three returns
are left to the online client. Rare turns in such pauses, as probes, find out whether returns cost less by now. Two slow
returns delay no probe, because the cheapest of the last three determines the time between probes.

The expected cost of a return is the median of the last three. So after one slow return the offline clients wait until
the budget has earned its loss, and not longer.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median_low

MAX_LOSS = 0.045  # of all time; the promise is 5 %, and switches without transfers take another part
_MAX_RETURNS = 2.0  # that a bucket holds
_SHORT_PAUSE = 1.25  # in returns; a part of a longer pause is left when the memory of the offline client has come
_PROBE_LOSS = 0.005  # of all time, for turns in short pauses, if the last returns have cost the same
_COUNTED_RETURNS = 3
_MIN_COST_SECONDS = 0.001  # of a return from which memory had left; a cheaper one shows no cost
_WEIGHT = 0.3  # of the newest pause in the mean
_LATEST_START = 0.5  # of an offline turn, in mean pauses
_LONG_PAUSE = 2.0  # in mean pauses


class TakeoverBudget:
    """Budget of one online client, with times in seconds."""

    __slots__ = ("_cost", "_costs", "_earned", "_mean_pause", "_returned_at", "_updated_at")

    def __init__(self) -> None:
        self._earned = 0.0
        self._updated_at = 0.0
        self._cost = 0.0  # of a return: the median of `_costs`
        self._costs = deque[float](maxlen=_COUNTED_RETURNS)  # of the last returns
        self._returned_at = 0.0
        self._mean_pause = 0.0  # exponentially weighted

    def spend(self, seconds: float, now: float, is_return: bool) -> None:
        """Spend the `seconds` that the client has lost before its work begins at `now`.

        `is_return`: an offline client had a turn since the client's last turn. Otherwise the client came back while
        its memory left.
        """
        earned = self._earned + (now - self._updated_at) * MAX_LOSS
        self._earned = min(earned, _MAX_RETURNS * self._cost) - seconds
        self._updated_at = now
        if is_return and seconds > _MIN_COST_SECONDS:
            self._costs.append(seconds)
            self._cost = median_low(self._costs)
            self._returned_at = now

    def add_pause(self, seconds: float) -> None:
        """Add a pause of the client, from the end of a turn to the wait for the next turn."""
        self._mean_pause += (_WEIGHT if self._mean_pause else 1.0) * (seconds - self._mean_pause)

    def pause_ends_by(self, paused_since: float) -> float:
        """Return by when a pause ends, unless it is a long one."""
        return paused_since + _LONG_PAUSE * self._mean_pause

    def ready_at(self, paused_since: float | None, now: float) -> float:
        """Return when an offline turn may cost one more return; minus infinity: a return has cost nothing so far.

        `paused_since`: the beginning of the client's pause; None: the client works, or waits.
        """
        if not self._cost and self._earned >= 0:
            return -math.inf
        ready_at = earned_at = self._updated_at + max(0.0, self._cost - self._earned) / MAX_LOSS
        long_pause = _LONG_PAUSE * self._mean_pause
        if len(self._costs) > 1 and 0 < self._mean_pause < _SHORT_PAUSE * max(self._costs):
            ready_at = max(earned_at, self._returned_at + min(self._costs) / _PROBE_LOSS)
            long_pause = _LONG_PAUSE * max(self._costs)
        long_pause_at = max(earned_at, (now if paused_since is None else paused_since) + long_pause)
        if paused_since is None or ready_at <= paused_since + _LATEST_START * self._mean_pause:
            return min(ready_at, long_pause_at)
        return long_pause_at
