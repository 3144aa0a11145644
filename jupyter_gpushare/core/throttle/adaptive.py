"""The rule for offline clients beside online ones: how fast an opportunistic client may launch beside a guaranteed one.

The adaptive rate control of TGS (Wu et al., "Transparent GPU Sharing in Container Clouds for Deep Learning Workloads",
NSDI 2023): the guaranteed client's own launch rate shows what the other one costs it, so nothing needs to be known of
either program. As in TCP, the limit of the opportunistic one starts slowly, doubles and halves where little is known,
and creeps where much is. The parameters are TGS's; what is ours says so. Two additions of ours make it converge within
a minute, whatever the size of a block: the first limit is what the device seems to have left, where that is known, and
after a loss the limit returns half of the way to the limit of that loss with each step, as in BIC (Xu et al., "Binary
Increase Congestion Control for Fast Long-Distance Networks", INFOCOM 2004).

Rates are in blocks per WINDOW unless they are said to be per second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from weakref import WeakKeyDictionary

from ..model import Client
from .activity import SAMPLES, WINDOW, Activity, highest
from .budget import ADAPTIVE, BLOCKS, MEASURING, Budget

TOLERATED = 0.03  # the loss of the guaranteed client up to which the other one may go faster
SEVERE = 0.09  # the loss at which it starts anew from a tenth
FIRST_LIMIT = 20_000.0
_MOST_UNMEASURED = 1e12  # while the limit doubles with each update, until the client uses enough to be measured
LEAST_LIMIT = WINDOW  # one block per second: as good as stopped; ours, for a rate of 0 means "no limit" to a page
_STEP = 1_000.0  # the least change in congestion avoidance
_PART_OF_ROOM = 0.8  # of what the device seems to have left: the first limit, where that is known
_PROBE = 1.08  # the factor by which a limit exceeds its ceiling, if it has met no loss up to there; doubled each time
_LARGEST_PROBE = 1.5
_AGREE = 0.05  # two windows alone that differ by no more say what the rate is


class AdaptiveRate:
    """The limit of one opportunistic client beside one guaranteed client (or the sum of several)."""

    def __init__(self, baseline: float | None = None) -> None:
        """`baseline`: the guaranteed client's rate alone, if that is known; else it is measured first, with the
        opportunistic one all but stopped."""
        self.baseline = baseline
        self.limit = FIRST_LIMIT if baseline else LEAST_LIMIT
        self.allowed: float | None = self.limit / WINDOW  # what `update` said last
        self._slow_start = True
        self._room_awaited = True  # until it has set the limit, or a loss has
        self._recent: deque[float] = deque(maxlen=SAMPLES)
        self._stepped: float | None = None
        self._losses = 0  # windows in a row with more than is tolerated
        self._ceiling = 0.0  # the limit at the last loss; 0: none is known
        self._probe = _PROBE
        self._began = (0.0, 0.0)  # limit and loss at the first of them

    def update(
        self, guaranteed: float | None, opportunistic: float | None, now: float, room: float | None = None
    ) -> float | None:
        """Blocks per second that the opportunistic client may launch; None: as many as it likes.

        Call it about once a second with what the two have launched lately, in blocks per WINDOW; the limit changes
        once per WINDOW. A rate of 0 says that the guaranteed client launches nothing, which is no loss but leave to go
        ahead; None says that its rate is unknown, and nothing changes. `room`: the blocks per WINDOW for which the
        device seems to have time left beside all that the guaranteed client does alone; inf: the
        opportunistic client has not used enough of it to know what its blocks cost; None: not known.
        """
        if guaranteed == 0:
            self._recent.clear()
            self._losses = 0
            self._stepped = now
            self.allowed = None  # and when it comes back, the limit is what it was: that was safe
            return None
        if self._stepped is None:
            self._stepped = now
        if guaranteed is not None and now - self._stepped >= WINDOW * 0.99:
            self._stepped = now
            self._recent.append(guaranteed)
            if self.baseline is None:
                self._measure_alone()
            else:
                self._step(guaranteed, opportunistic)
        if self._room_awaited and self.baseline is not None and room is not None:
            self._begin_at(room, now)
        self.allowed = max(self.limit, LEAST_LIMIT) / WINDOW
        return self.allowed

    def _begin_at(self, room: float, now: float) -> None:
        """TGS's first limit is none at all where launches have few blocks, and next to nothing where they have many."""
        if room == inf:
            self.limit = min(2 * self.limit, _MOST_UNMEASURED)
            return
        self.limit = max(_PART_OF_ROOM * room, 2 * LEAST_LIMIT)
        self._room_awaited = False
        self._stepped = now + WINDOW  # the window at hand has losses from before

    def _measure_alone(self) -> None:
        agree = len(self._recent) > 1 and abs(self._recent[-1] - self._recent[-2]) <= _AGREE * self._recent[-1]
        if agree or len(self._recent) == SAMPLES:
            self.baseline = highest(self._recent)
            self.limit = FIRST_LIMIT

    def _step(self, guaranteed: float, opportunistic: float | None) -> None:
        # Three windows in a row: for a moment a client that catches up launches faster than it does alone.
        self.baseline = max(self.baseline or 0.0, min(list(self._recent)[-3:]) if len(self._recent) > 2 else 0.0)
        loss = max(0.0, 1.0 - guaranteed / self.baseline) if self.baseline else 0.0  # of its rate
        if loss <= TOLERATED:
            self._losses = 0
            # Else it does not use what it has, and nothing would be learnt. (Ours, as all that looks at its rate.)
            if opportunistic is None or 2 * opportunistic >= self.limit:
                self._raise()
            return
        self._room_awaited = False
        if opportunistic is not None:
            if opportunistic <= LEAST_LIMIT:  # it does nothing: this is the rate alone
                self.baseline = (guaranteed + self._recent[-min(2, len(self._recent))]) / 2
                return
            self.limit = min(self.limit, opportunistic)  # at this rate the loss came about
        if not self._losses:
            self._began = (self.limit, loss)
        self._losses += 1
        self._ceiling, self._probe = self.limit, _PROBE
        if self._losses >= SAMPLES and self._another_cause(guaranteed, loss):
            return
        # A severe loss in one window alone is no reason to start anew; ours, as the probes are that cause it.
        if self._slow_start or (loss >= SEVERE and self._losses == 1):
            self.limit /= 1.5
            self._slow_start = False
            return
        # The last bound is ours: small limits would fall to nothing at once.
        self.limit -= min(max(0.08 * self.limit, _STEP), self.limit / 3)
        if loss >= SEVERE:
            self._start_anew()

    def _raise(self) -> None:
        if self._slow_start:
            self.limit = self.limit * 1.5 + 1
            return
        # The last bound is ours: where launches are few and large, steps of a thousand blocks are no small ones.
        step = min(max(0.00025 * (self.baseline or 0.0), _STEP), 0.08 * self.limit)
        if self.limit + step >= self._ceiling:
            self._ceiling = max(self.limit + step, self._probe * self.limit)
            self._probe = min(_LARGEST_PROBE, 2 * self._probe - 1)
            self.limit = self._ceiling
        else:
            self.limit += max(step, (self._ceiling - self.limit) / 2)

    def _start_anew(self) -> None:
        self.limit = max(self.limit / 10, LEAST_LIMIT)
        self._ceiling = 0.0
        self._slow_start = True

    def _another_cause(self, guaranteed: float, loss: float) -> bool:
        """Whether the guaranteed client is slow for reasons of its own: a loss that hardly shrinks when the
        opportunistic one has a tenth. Then this is its new phase, and its rate now the baseline. (TGS takes a rate that
        is 20 % lower for long enough for a new phase; lesser ones would stay a loss for ever.)
        """
        limit, first = self._began
        if self.limit > max(limit / 10, LEAST_LIMIT):
            self._start_anew()
            return True
        if loss < first / 2 and self.limit > LEAST_LIMIT:
            return False
        self.baseline = guaranteed
        self._recent.clear()
        self._losses = 0
        self._slow_start = True
        return True


class Adaptive:
    """The offline members of a device share what no online one misses."""

    def __init__(self, activity: Callable[[Client], Activity]) -> None:
        self._activity = activity
        self._rates = WeakKeyDictionary[Client, AdaptiveRate]()  # by online client: what it leaves
        self._members: tuple[Client, ...] = ()

    def watch(self, members: Sequence[Client], now: float) -> None:
        launched = [self._activity(client).window.rate for client in members if client.rank]
        opportunistic = None if None in launched else sum(rate for rate in launched if rate)
        for client in members:
            if client in self._rates and not client.rank:
                rate = self._activity(client).window.rate
                self._rates[client].update(rate, opportunistic, now, self._room(members))

    def _room(self, members: Sequence[Client]) -> float | None:
        """Blocks per WINDOW of offline members, for which the online ones seem to leave the device time."""
        loads = [self._activity(client).load for client in members if not client.rank]
        paces = [self._activity(client).pace for client in members if client.rank]
        if None in loads:
            return None
        if not all(paces):
            return inf
        left = 1.0 - sum(load for load in loads if load)
        return max(0.0, left) * WINDOW * sum(paces) / len(paces)

    def budgets(self, members: Sequence[Client], now: float) -> dict[str, Budget]:
        for client in {*self._members} ^ {*members}:
            if rate := self._rates.get(client):
                rate.update(None if client in members else 0, None, now)  # its pause is no loss
        self._members = tuple(members)
        online = [client for client in members if not client.rank]
        offline = [client.id for client in members if client.rank]
        if not online or not offline:
            return {}
        for client in online:
            if client not in self._rates:
                self._rates[client] = AdaptiveRate(self._activity(client).rate_alone)
        rates = {client.id: self._rates[client] for client in online}
        allowed = {identity: rate.allowed for identity, rate in rates.items() if rate.allowed is not None}
        if not allowed:
            return {}
        reason = MEASURING if any(rates[identity].baseline is None for identity in allowed) else ADAPTIVE
        part = max(1, int(min(allowed.values()) / len(offline)))
        return dict.fromkeys(offline, Budget(part, BLOCKS, reason, tuple(allowed)))
