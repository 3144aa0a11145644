"""The scheduler tunes two of its own parameters by what it measures; off by default.

SIREN (Wang, Niu and Li, "Distributed Machine Learning with a Serverless Architecture", INFOCOM 2019) has a learning
agent that decides on resources anew in each epoch. Here the agent is a bandit, and it is kept safe: two parameters with
three sound values each, one epoch in so many for a try, each try compared with the epochs before and after it (the load
changes more from hour to hour than any setting could), and the defaults again whenever too little is known. What to try
is chosen by its lower confidence bound on discounted costs (discounted UCB: Garivier and Moulines, "On Upper-Confidence
Bound Policies for Switching Bandit Problems", ALT 2011).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import sqrt

from ..interface.settings import Settings

MIN_EPOCH_SECONDS = 60.0  # seconds of one setting, at least
MIN_EPOCH_TURNS = 20  # and turns
PROBE_INTERVAL_EPOCHS = 4  # one epoch in so many is a try
DISCOUNT = 0.995  # of all that is known, in the time between two tries
MIN_SAMPLES = 5.0  # tries, discounted, without which a setting is not believed to be better
CONFIDENCE = 2.5  # standard errors by which it must be better; and worse, not to be tried any more for a while


@dataclass(frozen=True)
class TuningSetting:
    """Values that are tried together.

    `switch_overhead`: the fraction of time that switching may take, which gives the quantum "auto".
    `idle_factor`: a factor on the time without work after which an idle turn ends.
    """

    switch_overhead: float = 0.05
    idle_factor: float = 1.0


DEFAULT = TuningSetting()
OVERHEADS = (0.025, 0.05, 0.1)
RELEASES = (0.5, 1.0, 2.0)
SETTINGS = tuple(TuningSetting(overhead, release) for overhead, release in product(OVERHEADS, RELEASES))


def neighbours(setting: TuningSetting) -> list[TuningSetting]:
    """Those that differ by one step of one parameter. Only they are tried: they are hardly much worse."""
    at = (OVERHEADS.index(setting.switch_overhead), RELEASES.index(setting.idle_factor))
    return [
        other
        for other in SETTINGS
        if abs(OVERHEADS.index(other.switch_overhead) - at[0]) + abs(RELEASES.index(other.idle_factor) - at[1]) == 1
    ]


@dataclass(frozen=True)
class CostTotals:
    """Sums over all clients from the beginning: seconds `waited` at the gate, spent on `switching`, and `worked` on the
    devices, and the number of `turns`."""

    waited: float = 0.0
    switching: float = 0.0
    worked: float = 0.0
    turns: int = 0


@dataclass
class _SettingStats:
    """Discounted sums of a setting's cost over that of the trusted one, as fractions, one term per try."""

    samples: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def add(self, difference: float) -> None:
        self.samples += 1.0
        self.total += difference
        self.squares += difference * difference

    def discount(self, factor: float) -> None:
        self.samples *= factor
        self.total *= factor
        self.squares *= factor

    @property
    def mean(self) -> float:
        return self.total / self.samples if self.samples else 0.0

    @property
    def scatter(self) -> float:
        """The sum of squared differences from the mean."""
        return max(self.squares - self.samples * self.mean**2, 0.0)


class SelfTuning:
    """Says which setting to use. Deterministic for a given `seed`, which is the order of the first tries."""

    def __init__(self, seed: int = 0, epoch: float = MIN_EPOCH_SECONDS) -> None:
        self.setting = DEFAULT  # to be used now
        self.baseline = DEFAULT  # in force but for tries
        self._epoch = epoch
        self._stats = {setting: _SettingStats() for setting in SETTINGS}
        self._order = sorted(SETTINGS, key=lambda setting: _splitmix64(seed * 64 + SETTINGS.index(setting)))
        self._epoch_start: tuple[float, CostTotals] | None = None
        self._epochs = 0
        self._cost_before_trial: float | None = None  # the cost of the trusted setting's epoch before a try
        self._last_trial: tuple[TuningSetting, float] | None = None  # a try, and its cost

    def observe(self, totals: CostTotals, now: float) -> bool:
        """Call it now and then. True: `setting` has changed."""
        if self._epoch_start is None or totals.turns < self._epoch_start[1].turns:
            self._epoch_start = (now, totals)
            return False
        since, first = self._epoch_start
        seconds = now - since
        if seconds < self._epoch or totals.turns - first.turns < MIN_EPOCH_TURNS:
            return False
        self._epoch_start = (now, totals)
        before = self.setting
        self._discount(seconds / self._epoch)
        self._end_epoch(_cost(first, totals))
        return self.setting != before

    def _discount(self, epochs: float) -> None:
        """What was learnt by day says less about the night. With too little left, the defaults are in force again."""
        for known in self._stats.values():
            known.discount(DISCOUNT ** (epochs / PROBE_INTERVAL_EPOCHS))
        if self.baseline != DEFAULT and sum(known.samples for known in self._stats.values()) < MIN_SAMPLES:
            self._adopt_baseline(DEFAULT)

    def _end_epoch(self, cost: float) -> None:
        """An epoch is over that cost so much."""
        self._epochs += 1
        if self.setting != self.baseline:
            self._last_trial = (self.setting, cost)
            self.setting = self.baseline
            return
        if self._last_trial is not None and self._cost_before_trial is not None:
            tried, its_cost = self._last_trial
            self._last_trial = None
            self._learn(tried, its_cost / max((self._cost_before_trial + cost) / 2, 1e-9) - 1.0)
        self._cost_before_trial = cost
        if self._epochs >= PROBE_INTERVAL_EPOCHS:
            self._epochs = 0
            self.setting = self._next_candidate()

    def _learn(self, tried: TuningSetting, difference: float) -> None:
        # One mad epoch (a cell that ran away) is not to be believed more than others.
        self._stats[tried].add(max(-1.0, min(1.0, difference)))
        better = [
            setting
            for setting, known in self._stats.items()
            if setting != self.baseline
            and known.samples >= MIN_SAMPLES
            and known.mean + CONFIDENCE * self._error(known) < 0
        ]
        if better:
            self._adopt_baseline(min(better, key=lambda setting: self._stats[setting].mean))

    def _error(self, known: _SettingStats) -> float:
        """The standard error of a setting's mean. Noise is alike for all: it is estimated from all tries together."""
        tries = sum(one.samples for one in self._stats.values())
        freedom = tries - sum(one.samples > 0 for one in self._stats.values())
        if known.samples <= 0 or freedom < 1:
            return float("inf")
        return sqrt(sum(one.scatter for one in self._stats.values()) / freedom / known.samples)

    def _adopt_baseline(self, setting: TuningSetting) -> None:
        """From now on differences are to this one."""
        old, gain = self.baseline, self._stats[setting].mean
        tries = self._stats[setting].samples
        self.baseline = self.setting = setting
        self._last_trial = self._cost_before_trial = None
        for known in self._stats.values():
            known.squares += known.samples * gain * gain - 2 * gain * known.total
            known.total -= known.samples * gain
        self._stats[old] = _SettingStats(tries, -gain * tries, self._stats[setting].scatter + tries * gain * gain)
        self._stats[setting] = _SettingStats()

    def _next_candidate(self) -> TuningSetting:
        """The neighbour that may be best, unless none may be better than what is trusted."""
        open_ones = [setting for setting in self._order if setting in neighbours(self.baseline)]

        def promise(setting: TuningSetting) -> float:
            known = self._stats[setting]
            return known.mean - CONFIDENCE * self._error(known) if known.samples >= 1 else float("-inf")

        # Of those of which nothing is known yet, the one that was tried least.
        first = min(open_ones, key=lambda setting: (promise(setting), self._stats[setting].samples))
        return first if promise(first) < 0 else self.baseline


class SettingsTuner:
    """Tells a `SelfTuning` how turns went, and settings what it says."""

    def __init__(self) -> None:
        self._self_tuning = SelfTuning()
        self._switch_seconds = self._work_seconds = 0.0
        self._turns = 0

    def on_turn_ended(self, settings: Settings, waited: float, switching: float, worked: float, now: float) -> Settings:
        """`waited`: seconds, of all clients from the beginning; `switching` and `worked`: of the turn. Returns the
        settings to use from now on: the same object if nothing changes."""
        self._turns += 1
        self._switch_seconds += switching
        self._work_seconds += worked
        if settings.tuning and self._self_tuning.observe(
            CostTotals(waited, self._switch_seconds, self._work_seconds, self._turns), now
        ):
            return self.apply(settings)
        return settings

    def apply(self, settings: Settings) -> Settings:
        if not settings.tuning:
            return settings
        chosen = self._self_tuning.setting
        return replace(settings, switch_overhead=chosen.switch_overhead, idle_factor=chosen.idle_factor)


def _cost(first: CostTotals, last: CostTotals) -> float:
    """Seconds lost, to waiting and to switching, for each second of work."""
    lost = last.waited - first.waited + last.switching - first.switching
    return lost / max(last.worked - first.worked, 1e-3)


def _splitmix64(number: int) -> int:
    """A number that looks random (the finaliser of splitmix64)."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    number = (number ^ number >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return number ^ number >> 31
