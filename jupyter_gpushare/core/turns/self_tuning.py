"""Tuning of two of the scheduler's settings by measured costs; off by default.

SIREN (Wang, Niu and Li, "Distributed Machine Learning with a Serverless Architecture", INFOCOM 2019) has a learning
agent that decides on resources anew in each epoch. Here the agent is a bandit with bounds that keep it safe:

* There are two settings with three sound values each.
* At most one of `PROBE_INTERVAL_EPOCHS` epochs is a trial.
* A trial is compared with the epochs before and after it, because the load changes more from hour to hour than any
  setting could change the costs.
* The defaults are in force again whenever too few trials are known.

The values of a trial have the smallest lower confidence bound on discounted costs (discounted UCB: Garivier and
Moulines, "On Upper-Confidence Bound Policies for Switching Bandit Problems", ALT 2011).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from math import sqrt
from typing import Any

from ..interface.settings import Settings

MIN_EPOCH_SECONDS = 60.0  # of an epoch, which uses one setting
MIN_EPOCH_TURNS = 20  # of an epoch
PROBE_INTERVAL_EPOCHS = 4  # epochs from one trial to the next
DISCOUNT = 0.995  # factor on all results in the time between two trials
MIN_SAMPLES = 5.0  # discounted trials that a setting needs to become the baseline
CONFIDENCE = 2.5  # standard errors by which a setting must be better, or else worse to get no trials for a while


@dataclass(frozen=True)
class TuningSetting:
    """Values that are tried together.

    `switch_overhead`: the fraction of time that switching may take, from which the quantum "auto" follows.
    `idle_factor`: a factor on the time without work after which an idle turn ends.
    """

    switch_overhead: float = 0.05
    idle_factor: float = 1.0


DEFAULT = TuningSetting()
OVERHEADS = (0.025, 0.05, 0.1)
RELEASES = (0.5, 1.0, 2.0)
SETTINGS = tuple(TuningSetting(overhead, release) for overhead, release in product(OVERHEADS, RELEASES))


def neighbours(setting: TuningSetting) -> list[TuningSetting]:
    """Return the settings that differ by one step of one value, the only ones to try because they are hardly worse."""
    at = (OVERHEADS.index(setting.switch_overhead), RELEASES.index(setting.idle_factor))
    return [
        other
        for other in SETTINGS
        if abs(OVERHEADS.index(other.switch_overhead) - at[0]) + abs(RELEASES.index(other.idle_factor) - at[1]) == 1
    ]


@dataclass(frozen=True)
class CostTotals:
    """Sums over all clients from the beginning.

    Seconds `waited` at the gate, seconds spent on `switching`, seconds `worked` on the devices, and the number of
    `turns`.
    """

    waited: float = 0.0
    switching: float = 0.0
    worked: float = 0.0
    turns: int = 0


@dataclass
class _SettingStats:
    """Discounted sums of a setting's cost over the baseline's cost, as fractions, with one term per trial."""

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
    """Bandit that chooses the setting, deterministic for a `seed`, which gives the order of the first trials."""

    def __init__(self, seed: int = 0, epoch: float = MIN_EPOCH_SECONDS) -> None:
        self.setting = DEFAULT  # the setting to use now
        self.baseline = DEFAULT  # the setting to use outside trials
        self._epoch = epoch
        self._stats = {setting: _SettingStats() for setting in SETTINGS}
        self._order = sorted(SETTINGS, key=lambda setting: _splitmix64(seed * 64 + SETTINGS.index(setting)))
        self._epoch_start: tuple[float, CostTotals] | None = None
        self._epochs = 0
        self._cost_before_trial: float | None = None  # the cost of the baseline's epoch before a trial
        self._last_trial: tuple[TuningSetting, float] | None = None  # the setting of a trial, and its cost

    def report(self) -> dict[str, Any]:
        """Return the setting in use, the setting outside trials, and the mean gain of each setting that was tried.

        A gain is the part of the seconds lost to waiting and switching that the setting has saved, against the setting
        outside trials. `trials` is a discounted number.
        """
        tried = [
            {**asdict(setting), "trials": round(stats.samples, 1), "gain": round(-stats.mean, 4)}
            for setting, stats in self._stats.items()
            if stats.samples >= 1
        ]
        return {"now": asdict(self.setting), "kept": asdict(self.baseline), "tried": tried}

    def observe(self, totals: CostTotals, now: float) -> bool:
        """Take totals, at any intervals, and return whether `setting` has changed."""
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
        """Reduce the weight of all results, because the load changes; with too few results, return to the defaults."""
        for stats in self._stats.values():
            stats.discount(DISCOUNT ** (epochs / PROBE_INTERVAL_EPOCHS))
        if self.baseline != DEFAULT and sum(stats.samples for stats in self._stats.values()) < MIN_SAMPLES:
            self._adopt_baseline(DEFAULT)

    def _end_epoch(self, cost: float) -> None:
        """End an epoch with the cost `cost`."""
        self._epochs += 1
        if self.setting != self.baseline:
            self._last_trial = (self.setting, cost)
            self.setting = self.baseline
            return
        if self._last_trial is not None and self._cost_before_trial is not None:
            tried, trial_cost = self._last_trial
            self._last_trial = None
            self._learn(tried, trial_cost / max((self._cost_before_trial + cost) / 2, 1e-9) - 1.0)
        self._cost_before_trial = cost
        if self._epochs >= PROBE_INTERVAL_EPOCHS:
            self._epochs = 0
            self.setting = self._next_candidate()

    def _learn(self, tried: TuningSetting, difference: float) -> None:
        # One odd epoch, such as one with a runaway cell, counts no more than others.
        self._stats[tried].add(max(-1.0, min(1.0, difference)))
        better = [
            setting
            for setting, stats in self._stats.items()
            if setting != self.baseline
            and stats.samples >= MIN_SAMPLES
            and stats.mean + CONFIDENCE * self._error(stats) < 0
        ]
        if better:
            self._adopt_baseline(min(better, key=lambda setting: self._stats[setting].mean))

    def _error(self, stats: _SettingStats) -> float:
        """Return the standard error of a setting's mean, from all trials together, since all have the same noise."""
        trial_count = sum(stats.samples for stats in self._stats.values())
        degrees_of_freedom = trial_count - sum(stats.samples > 0 for stats in self._stats.values())
        if stats.samples <= 0 or degrees_of_freedom < 1:
            return float("inf")
        return sqrt(sum(stats.scatter for stats in self._stats.values()) / degrees_of_freedom / stats.samples)

    def _adopt_baseline(self, setting: TuningSetting) -> None:
        """Make `setting` the baseline to which differences refer."""
        old, gain = self.baseline, self._stats[setting].mean
        trial_count = self._stats[setting].samples
        self.baseline = self.setting = setting
        self._last_trial = self._cost_before_trial = None
        for stats in self._stats.values():
            stats.squares += stats.samples * gain * gain - 2 * gain * stats.total
            stats.total -= stats.samples * gain
        self._stats[old] = _SettingStats(
            trial_count, -gain * trial_count, self._stats[setting].scatter + trial_count * gain * gain
        )
        self._stats[setting] = _SettingStats()

    def _next_candidate(self) -> TuningSetting:
        """Return the neighbour with the best bound, or the baseline if no neighbour may be better."""
        candidates = [setting for setting in self._order if setting in neighbours(self.baseline)]

        def lower_bound(setting: TuningSetting) -> float:
            stats = self._stats[setting]
            return stats.mean - CONFIDENCE * self._error(stats) if stats.samples >= 1 else float("-inf")

        # Of the settings without results, the one with the fewest trials comes first.
        first = min(candidates, key=lambda setting: (lower_bound(setting), self._stats[setting].samples))
        return first if lower_bound(first) < 0 else self.baseline


class SettingsTuner:
    """Adapter that gives a `SelfTuning` the costs of turns and applies its setting to the scheduler's settings."""

    def __init__(self) -> None:
        self._self_tuning = SelfTuning()
        self._switch_seconds = self._work_seconds = 0.0
        self._turns = 0

    def on_turn_ended(self, settings: Settings, waited: float, switching: float, worked: float, now: float) -> Settings:
        """Return the settings to use from now on: the same object if nothing changes.

        `waited`: seconds of all clients from the beginning. `switching` and `worked`: seconds of the turn.
        """
        self._turns += 1
        self._switch_seconds += switching
        self._work_seconds += worked
        if settings.tuning and self._self_tuning.observe(
            CostTotals(waited, self._switch_seconds, self._work_seconds, self._turns), now
        ):
            return self.apply(settings)
        return settings

    def report(self, settings: Settings) -> dict[str, Any] | None:
        """Return the results of tuning, see `SelfTuning.report`; None: it is off."""
        return self._self_tuning.report() if settings.tuning else None

    def apply(self, settings: Settings) -> Settings:
        if not settings.tuning:
            return settings
        chosen = self._self_tuning.setting
        return replace(settings, switch_overhead=chosen.switch_overhead, idle_factor=chosen.idle_factor)


def _cost(first: CostTotals, last: CostTotals) -> float:
    """Return the seconds lost to waiting and switching for each second of work."""
    lost = last.waited - first.waited + last.switching - first.switching
    return lost / max(last.worked - first.worked, 1e-3)


def _splitmix64(number: int) -> int:
    """Return a number that looks random (the finaliser of splitmix64)."""
    number = (number + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    number = (number ^ number >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
    return number ^ number >> 31
