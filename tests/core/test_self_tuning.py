"""Tests of self-tuning on simulated days, in which the cost of each setting is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from random import Random

import pytest

from jupyter_gpushare.core.turns.self_tuning import (
    DEFAULT,
    MIN_EPOCH_SECONDS,
    MIN_EPOCH_TURNS,
    PROBE_INTERVAL_EPOCHS,
    SETTINGS,
    CostTotals,
    SelfTuning,
    TuningSetting,
)

Costs = Callable[[TuningSetting, float], float]


class Day:
    """A day. `costs`: seconds lost per second of work under a setting, at a time, before load and noise."""

    def __init__(self, costs: Costs, seed: int, noise: float = 0.2) -> None:
        self.costs, self.noise = costs, noise
        self.tuning = SelfTuning(seed)
        self.random = Random(seed)
        self.used: list[TuningSetting] = []
        self.lost = dict.fromkeys(SETTINGS, 0.0)  # by fixed setting, under the same load and noise
        self.lost_tuned = 0.0

    def run(self, hours: float) -> None:
        totals, now = CostTotals(), 0.0
        self.tuning.observe(totals, now)
        while now < hours * 3600:
            now += MIN_EPOCH_SECONDS
            load = 1.5 + math.sin(now / 7200) + 0.2 * math.sin(now / 700)
            factor = load * self.random.lognormvariate(0, self.noise)
            for setting in SETTINGS:
                self.lost[setting] += self.costs(setting, now) * factor
            cost = self.costs(self.tuning.setting, now) * factor
            self.lost_tuned += cost
            self.used.append(self.tuning.setting)
            totals = CostTotals(
                totals.waited + cost * 0.9 * 30,
                totals.switching + cost * 0.1 * 30,
                totals.worked + 30,
                totals.turns + 50,
            )
            self.tuning.observe(totals, now)

    @property
    def regret(self) -> float:
        """Excess cost over the best fixed setting, which only this test can compute."""
        return self.lost_tuned / min(self.lost.values()) - 1


def indifferent(setting: TuningSetting, now: float) -> float:
    return 1.0


def default_is_best(setting: TuningSetting, now: float) -> float:
    return 1.0 + 2 * abs(setting.switch_overhead - 0.05) + 0.05 * abs(math.log2(setting.idle_factor))


def longer_turns_are_best(setting: TuningSetting, now: float) -> float:
    return 1.0 + 0.8 * (setting.switch_overhead - 0.025) + 0.02 * (math.log2(setting.idle_factor) + 1)


def another_afternoon(setting: TuningSetting, now: float) -> float:
    return longer_turns_are_best(setting, now) if now < 12 * 3600 else default_is_best(setting, now)


@pytest.mark.parametrize("costs", [indifferent, default_is_best, longer_turns_are_best, another_afternoon])
@pytest.mark.parametrize("seed", range(6))
def test_never_worse_than_the_best_fixed_setting_by_more_than_a_twentieth(costs: Costs, seed: int) -> None:
    day = Day(costs, seed)
    day.run(24)
    assert day.regret <= 0.05


@pytest.mark.parametrize("seed", range(4))
def test_better_setting_is_selected(seed: int) -> None:
    day = Day(lambda setting, now: 0.5 if setting.idle_factor == 0.5 else 1.0, seed)
    day.run(24)
    last = day.used[-300:]
    assert sum(setting.idle_factor == 0.5 for setting in last) >= 0.8 * len(last)


def test_the_report_has_the_setting_and_its_gain() -> None:
    day = Day(lambda setting, now: 0.5 if setting.idle_factor == 0.5 else 1.0, 1)
    assert day.tuning.report() == {"now": asdict(DEFAULT), "kept": asdict(DEFAULT), "tried": []}
    day.run(24)
    report = day.tuning.report()
    assert report["kept"]["idle_factor"] == 0.5
    gains = {one["idle_factor"]: one["gain"] for one in report["tried"] if one["switch_overhead"] == 0.05}
    assert gains[1.0] == pytest.approx(-0.5, abs=0.1), "the gain of the new setting when it became the one to keep"


@pytest.mark.parametrize("seed", range(4))
def test_selected_setting_is_left_when_it_becomes_worse(seed: int) -> None:
    def costs(setting: TuningSetting, now: float) -> float:
        return (0.5 if now < 12 * 3600 else 2.0) if setting.idle_factor == 0.5 else 1.0

    day = Day(costs, seed)
    day.run(36)
    last = day.used[-300:]
    assert sum(setting.idle_factor != 0.5 for setting in last) >= 0.8 * len(last)


def test_few_epochs_are_tries() -> None:
    day = Day(indifferent, seed=1)
    day.run(24)
    tries = sum(one != other for one, other in zip(day.used, day.used[1:], strict=False)) / 2
    assert tries <= len(day.used) / PROBE_INTERVAL_EPOCHS + 1


def test_noise_keeps_the_default_setting() -> None:
    """With equal settings, the default is in force most of the time, because leaving it needs evidence."""
    kept = 0
    for seed in range(10):
        day = Day(indifferent, seed, noise=0.3)
        day.run(12)
        kept += day.tuning.baseline == DEFAULT
    assert kept >= 6


def test_a_quiet_night_is_no_epoch() -> None:
    tuning = SelfTuning()
    tuning.observe(CostTotals(), 0)
    for hour in range(1, 100):
        assert not tuning.observe(CostTotals(turns=min(hour, MIN_EPOCH_TURNS - 1)), hour * 3600)
    assert tuning.setting == DEFAULT


def test_the_same_measurements_lead_to_the_same_settings() -> None:
    days = [Day(longer_turns_are_best, seed=3) for _ in range(2)]
    for day in days:
        day.run(6)
    assert days[0].used == days[1].used
    assert len(set(days[0].used)) > 2
