"""Rule for colocations of offline and online clients, which limits an opportunistic client for a guaranteed one.

The rule is the adaptive rate control of TGS (Wu et al., "Transparent GPU Sharing in Container Clouds for Deep Learning
Workloads", NSDI 2023). The guaranteed client's own launch rate shows the cost of the opportunistic client, so the rule
needs no knowledge of either program. As in TCP, the limit of the opportunistic client starts low, changes by factors
where little is known, and creeps where much is known. The parameters are TGS's, unless they are marked as ours.

Two additions of ours make the limit converge within a minute, whatever the size of a block. The first limit is the
device time that seems to be left, if it is known. After a loss, each step takes the limit half of the way to the limit
of that loss. BIC does the same (Xu et al., "Binary Increase Congestion Control for Fast Long-Distance Networks",
INFOCOM 2004).

Rates are in blocks per window unless a name or text has the unit per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from weakref import WeakKeyDictionary

from ..interface.launch_budget import ADAPTIVE, BLOCKS, MEASURING, LaunchBudget
from ..state.model import Client
from .activity import MAX_WINDOWS, WINDOW_SECONDS, Activity, LaunchWindow, highest_rate, value_of_set

TOLERATED_SLOWDOWN = 0.03  # loss of the guaranteed client up to which the opportunistic client may go faster
SEVERE_SLOWDOWN = 0.09  # loss of the guaranteed client at which the limit starts anew from a tenth
FIRST_LIMIT = 20_000.0
_MAX_UNMEASURED_LIMIT = 1e12  # while the limit doubles with each update, until the client uses enough to be measured
MIN_LIMIT = WINDOW_SECONDS  # one block per second, all but stopped; ours, because a page reads a rate of 0 as no limit
_MIN_STEP = 1_000.0  # the smallest change in congestion avoidance
_MIN_CAPACITY = TOLERATED_SLOWDOWN / 2  # of the device time: the capacity left by clients that seem to leave less
_FIRST_CAPACITY_FRACTION = 0.8  # of the device time that seems to be left: the first limit, if that time is known
_PROBE = 1.08  # factor by which a limit exceeds a ceiling that it has reached without loss; doubled each time
_MAX_PROBE = 1.5
_MAX_MEASURING_SECONDS = 60.0  # in a row, on one device, in which offline clients are all but stopped
_MIN_MEASURING_SECONDS = 20.0  # from which on measurements begin again
_MEASURING_PART = 0.1  # of all other time: the time for measurements
_MAX_UPDATE_SECONDS = 2.0  # between two updates that belong together
_MAX_DISAGREEMENT = 0.05  # relative difference up to which two exclusive windows give the baseline


class AdaptiveRate:
    """The limit of one opportunistic client, colocated with one guaranteed client (or the sum of several)."""

    def __init__(self, baseline: float | None = None) -> None:
        """Start with the guaranteed client's exclusive rate, `baseline`, if it is known.

        Otherwise the rate is measured first, while the opportunistic client is all but stopped.
        """
        self.baseline = baseline
        self.limit = FIRST_LIMIT if baseline else MIN_LIMIT
        self.allowed: float | None = self.limit / WINDOW_SECONDS  # the last result of `update`
        self.loss: float | None = None  # of the guaranteed client's rate in the last window; None: unknown
        self._lost_seconds = 0.0
        self._slow_start = True
        self._awaits_capacity = True  # until the capacity has set the limit, or a loss has occurred
        self._recent: deque[float] = deque(maxlen=MAX_WINDOWS)
        self._stepped_at: float | None = None
        self._losses = 0  # windows in a row with a loss above `TOLERATED_SLOWDOWN`
        self._ceiling = 0.0  # the limit at the last loss; 0: unknown
        self._probe = _PROBE
        self._first_loss = (0.0, 0.0)  # limit and loss at the first of these windows

    def update(
        self, guaranteed: float | None, opportunistic: float | None, now: float, capacity_left: float | None = None
    ) -> float | None:
        """Return the blocks per second that the opportunistic client may launch, or None for no limit.

        Call it about once a second with the recent launches of both clients, in blocks per window. The limit changes
        once per window. `guaranteed` is 0: the guaranteed client launches nothing, so the opportunistic client may
        speed up. `guaranteed` is None: the rate is unknown, and the limit stays. `capacity_left`: the blocks per window
        for which the guaranteed client's exclusive work leaves the device time. inf: the opportunistic client
        has not launched enough to estimate the cost of its blocks. None: unknown.
        """
        if guaranteed == 0:
            self.loss = None
            self._recent.clear()
            self._losses = 0
            self._stepped_at = now
            self.allowed = None  # `limit` stays for the client's return, since it was safe before
            return None
        if self._stepped_at is None:
            self._stepped_at = now
        if guaranteed is not None and now - self._stepped_at >= WINDOW_SECONDS * 0.99:
            self._stepped_at = now
            self._recent.append(guaranteed)
            if self.baseline is None:
                self._measure_baseline()
            else:
                self._step(guaranteed, opportunistic)
        if self._awaits_capacity and self.baseline is not None and capacity_left is not None:
            self._start_at_capacity(capacity_left, now)
        self.allowed = max(self.limit, MIN_LIMIT) / WINDOW_SECONDS
        return self.allowed

    def take_lost_seconds(self) -> float:
        """Return the time that the guaranteed client has lost by its slowdown since the last call, in seconds."""
        lost, self._lost_seconds = self._lost_seconds, 0.0
        return lost

    def start_unmeasured(self, capacity_left: float) -> None:
        """Set the limit from the capacity, because no measurement is possible."""
        if capacity_left != inf:
            self.limit = max(_FIRST_CAPACITY_FRACTION * capacity_left, MIN_LIMIT)
            self.allowed = self.limit / WINDOW_SECONDS

    def _start_at_capacity(self, capacity_left: float, now: float) -> None:
        """Set the first limit from the capacity.

        TGS's first limit is no limit at all for small launches, and next to nothing for launches with many blocks.
        """
        if capacity_left == inf:
            self.limit = min(2 * self.limit, _MAX_UNMEASURED_LIMIT)
            return
        self.limit = max(_FIRST_CAPACITY_FRACTION * capacity_left, 2 * MIN_LIMIT)
        self._awaits_capacity = False
        self._stepped_at = now + WINDOW_SECONDS  # the present window has losses from before

    def _measure_baseline(self) -> None:
        agree = (
            len(self._recent) > 1 and abs(self._recent[-1] - self._recent[-2]) <= _MAX_DISAGREEMENT * self._recent[-1]
        )
        if agree or len(self._recent) == MAX_WINDOWS:
            self.baseline = highest_rate(self._recent)
            self.limit = FIRST_LIMIT

    def _step(self, guaranteed: float, opportunistic: float | None) -> None:
        # Three windows in a row, because a client that catches up exceeds its exclusive rate for a moment.
        self.baseline = max(self.baseline or 0.0, min(list(self._recent)[-3:]) if len(self._recent) > 2 else 0.0)
        self.loss = loss = max(0.0, 1.0 - guaranteed / self.baseline) if self.baseline else 0.0
        self._lost_seconds += loss * WINDOW_SECONDS
        if loss <= TOLERATED_SLOWDOWN:
            self._losses = 0
            # Otherwise the client does not use its limit, and a step shows nothing. (Ours, as all uses of its rate.)
            # A client without launches waits for a limit below the size of its launches.
            if not opportunistic or 2 * opportunistic >= self.limit:
                self._increase()
            return
        self._awaits_capacity = False
        if opportunistic is not None:
            if opportunistic <= MIN_LIMIT:  # the client does nothing, so this is the exclusive rate
                self.baseline = (guaranteed + self._recent[-min(2, len(self._recent))]) / 2
                return
            self.limit = min(self.limit, opportunistic)  # the rate at which the loss occurred
        if not self._losses:
            self._first_loss = (self.limit, loss)
        self._losses += 1
        self._ceiling, self._probe = self.limit, _PROBE
        if self._losses >= MAX_WINDOWS and self._is_unrelated_slowdown(guaranteed, loss):
            return
        # A severe loss in a single window is no reason to start anew; ours, as the probes are that cause it.
        if self._slow_start or (loss >= SEVERE_SLOWDOWN and self._losses == 1):
            self.limit /= 1.5
            self._slow_start = False
            return
        # The last bound is ours, because small limits would fall to nothing at once.
        self.limit -= min(max(0.08 * self.limit, _MIN_STEP), self.limit / 3)
        if loss >= SEVERE_SLOWDOWN:
            self._restart()

    def _increase(self) -> None:
        if self._slow_start:
            self.limit = self.limit * 1.5 + 1
            return
        # The last bound is ours, because steps of a thousand blocks are large where launches are few and large.
        step = min(max(0.00025 * (self.baseline or 0.0), _MIN_STEP), 0.08 * self.limit)
        if self.limit + step >= self._ceiling:
            self._ceiling = max(self.limit + step, self._probe * self.limit)
            self._probe = min(_MAX_PROBE, 2 * self._probe - 1)
            self.limit = self._ceiling
        else:
            self.limit += max(step, (self._ceiling - self.limit) / 2)

    def _restart(self) -> None:
        self.limit = max(self.limit / 10, MIN_LIMIT)
        self._ceiling = 0.0
        self._slow_start = True

    def _is_unrelated_slowdown(self, guaranteed: float, loss: float) -> bool:
        """Return whether the guaranteed client is slow for reasons of its own, and then act on it.

        The loss is unrelated if it hardly shrinks when the opportunistic client has a tenth. Then the guaranteed client
        is in a new phase, and its rate becomes the baseline. (TGS takes a rate that is 20 % lower for long enough for a
        new phase; smaller losses would remain for ever.)
        """
        limit, first = self._first_loss
        if self.limit > max(limit / 10, MIN_LIMIT):
            self._restart()
            return True
        if loss < first / 2 and self.limit > MIN_LIMIT:
            return False
        self.baseline = guaranteed
        self._recent.clear()
        self._losses = 0
        self._slow_start = True
        return True


class AdaptiveRule:
    """Adaptive rates of a device's online members, which its offline members share.

    An online member has a rate for each set of online clients beside it. (Ours; TGS has one guaranteed client.) Sets
    may be short or many, so measurements have a part of all time. After that, the member's rate beside any set stands
    in for an unknown one.
    """

    def __init__(self, activity: Callable[[Client], Activity]) -> None:
        self._activity = activity
        # By online client and `Activity.online`: the rate that the online client leaves.
        self._rates = WeakKeyDictionary[Client, dict[frozenset[str], AdaptiveRate]]()
        self._general_rates = WeakKeyDictionary[Client, AdaptiveRate]()  # by online client, beside any set
        self._members: tuple[Client, ...] = ()
        self._measuring_left = _MAX_MEASURING_SECONDS
        self._may_measure = True
        self._updated_at = 0.0

    def update(self, members: Sequence[Client], now: float) -> None:
        offline = [self._activity(client) for client in members if client.service_rank]
        capacity = self._capacity_left(members)
        for client, rate in self._rates_in_force(members).items():
            activity, general = self._activity(client), self._general_rates[client]
            if rate is not general:
                _update(rate, activity.window, [one.window for one in offline], capacity)
            if rate is general or general.baseline is None:
                _update(general, activity.all_launches, [one.all_launches for one in offline], capacity)
            if rate.baseline is None and not self._may_measure and capacity is not None:
                rate.start_unmeasured(capacity)
            lost = rate.take_lost_seconds()
            if lost and any(member.turn_limit is not None for member in members):
                # Takeovers from the same client cost no more than the rest.
                client.takeover_budget.spend(lost, now, is_return=False)
        self._account_measuring(members, now)

    def _account_measuring(self, members: Sequence[Client], now: float) -> None:
        elapsed, self._updated_at = min(now - self._updated_at, _MAX_UPDATE_SECONDS), now
        if self._is_measuring(members):
            self._measuring_left -= elapsed
        else:
            earned = self._measuring_left + _MEASURING_PART * elapsed
            self._measuring_left = min(earned, _MAX_MEASURING_SECONDS)
        if self._measuring_left <= 0 or self._measuring_left >= _MIN_MEASURING_SECONDS:
            self._may_measure = self._measuring_left > 0

    def _is_measuring(self, members: Sequence[Client]) -> bool:
        return self._may_measure and any(rate.baseline is None for rate in self._rates_in_force(members).values())

    def _rates_in_force(self, members: Sequence[Client]) -> dict[Client, AdaptiveRate]:
        """Return the rates of the online members beside the present online clients, as far as they exist."""
        rates: dict[Client, AdaptiveRate] = {}
        for client in members:
            of_set = self._rates.get(client, {}).get(self._activity(client).online)
            if of_set and not client.service_rank:
                is_usable = of_set.baseline is not None or self._may_measure
                rates[client] = of_set if is_usable else self._general_rates[client]
        return rates

    def online_loss(self) -> float | None:
        """Return the largest loss of an online member, as a fraction of its exclusive rate; None: not measured."""
        rates = self._rates_in_force(self._members).values()
        return max((rate.loss for rate in rates if rate.loss is not None), default=None)

    def _capacity_left(self, members: Sequence[Client]) -> float | None:
        """Return the blocks per window of offline members for which the online members seem to leave device time."""
        loads = [self._activity(client).exclusive_load for client in members if not client.service_rank]
        paces = [self._activity(client).blocks_per_work_second for client in members if client.service_rank]
        if None in loads or not paces:
            return None
        if not all(paces):
            return inf
        left = 1.0 - sum(load for load in loads if load)
        return max(_MIN_CAPACITY, left) * WINDOW_SECONDS * sum(paces) / len(paces)

    def budgets(self, members: Sequence[Client], now: float) -> dict[str, LaunchBudget]:
        for client, rate in self._rates_in_force(members).items():
            if client not in self._members:
                rate.update(None, None, self._activity(client).window.seconds)
        self._members = tuple(members)
        online = [client for client in members if not client.service_rank]
        offline = [client.id for client in members if client.service_rank]
        if not online or not offline:
            return {}
        for client in online:
            value_of_set(self._rates.setdefault(client, {}), self._activity(client).online, AdaptiveRate)
            self._general_rates.setdefault(client, AdaptiveRate())
        rates = {client.id: rate.allowed for client, rate in self._rates_in_force(members).items()}
        allowed = {identity: rate for identity, rate in rates.items() if rate is not None}
        if not allowed:
            return {}
        reason = MEASURING if self._is_measuring(members) else ADAPTIVE
        rate_per_client = max(1, int(min(allowed.values()) / len(offline)))
        return dict.fromkeys(offline, LaunchBudget(rate_per_client, BLOCKS, reason, tuple(allowed)))


def _update(
    rate: AdaptiveRate, guaranteed: LaunchWindow, opportunistic: Sequence[LaunchWindow], capacity_left: float | None
) -> None:
    launched = [window.rate for window in opportunistic]
    total = None if None in launched else sum(one for one in launched if one)
    rate.update(guaranteed.rate, total, guaranteed.seconds, capacity_left)  # a clock that stands still in pauses
