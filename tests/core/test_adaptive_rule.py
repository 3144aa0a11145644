"""Tests of the adaptive rule (TGS), which limits the launches of an offline client, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.throttle.activity import WINDOW_SECONDS, LaunchWindow
from jupyter_gpushare.core.throttle.adaptive_rule import FIRST_LIMIT, MIN_LIMIT, TOLERATED_SLOWDOWN, AdaptiveRate

from ..support import tier


@dataclass
class SharedDevice:
    """A device that the clients share in proportion to their demands, if the demands exceed the device.

    `load`: the part of the device that the guaranteed client uses exclusively (0: it launches nothing). `speed`: its
    blocks per second then. `cost`: device seconds of one block of the opportunistic client. This client launches as
    fast as it may, at most `demand` of the device. `friction`: the guaranteed client's loss per part of the device that
    the opportunistic client uses, even if the device has room.
    """

    load: float = 0.6
    speed: float = 100_000.0
    cost: float = 1e-6
    demand: float = 1.0
    friction: float = 0.0
    wobble: Callable[[int], float] = lambda second: 1.0
    rate: AdaptiveRate = field(default_factory=AdaptiveRate)
    now: float = 0.0
    lost: list[float] = field(default_factory=list)  # fraction that the guaranteed client lost, in each second
    used: list[float] = field(default_factory=list)  # part of the device that the opportunistic client used

    def __post_init__(self) -> None:
        self.guaranteed, self.opportunistic = LaunchWindow(), LaunchWindow()
        self._blocks = [0.0, 0.0]
        self.limit: float | None = MIN_LIMIT / WINDOW_SECONDS

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            asked = self.demand if self.limit is None else min(self.demand, self.limit * self.cost)
            crowd = max(1.0, self.load + asked)
            left = 1 / crowd * (1 - self.friction * asked) if self.load else 0.0
            self.lost.append(1 - left if self.load else 0.0)
            self.used.append(asked / crowd)
            self._blocks[0] += self.speed * left * self.wobble(len(self.lost))
            self._blocks[1] += asked / crowd / self.cost
            self.now += 1.0
            self.guaranteed.add(int(self._blocks[0]), self.now)
            self.opportunistic.add(int(self._blocks[1]), self.now)
            self.limit = self.rate.update(self.guaranteed.rate, self.opportunistic.rate, self.now)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("cost", [5e-7, 1e-5, 1e-4])
def test_the_guaranteed_client_keeps_its_rate_and_the_other_one_gets_what_is_left(load: float, cost: float) -> None:
    device = SharedDevice(load=load, cost=cost)
    device.run(900)
    assert mean(device.lost) <= 0.05
    assert mean(device.lost[-300:]) <= 0.04  # the loss stays near the tolerated slowdown
    assert mean(device.used[-300:]) >= 0.8 * (1 - load)


@pytest.mark.parametrize("friction", [0.1, 0.3, 1.0])
def test_interference_on_an_empty_device_is_bounded_too(friction: float) -> None:
    device = SharedDevice(load=0.3, friction=friction)
    device.run(900)
    assert mean(device.lost[60:]) <= 0.05
    assert mean(device.used[-300:]) >= 0.66 * min(0.7, TOLERATED_SLOWDOWN / friction)


def test_the_measured_loss_is_that_of_the_guaranteed_client() -> None:
    device = SharedDevice(load=0.3, friction=0.3)
    assert device.rate.loss is None
    device.run(300)
    recent = mean(device.lost[-8:])
    assert device.rate.loss == pytest.approx(recent, abs=0.015)
    device.load = 0.0
    device.run(8)
    assert device.rate.loss is None, "nothing is lost while the guaranteed client pauses"


def test_large_launches_do_not_make_the_limit_swing() -> None:
    """The device has 400 blocks per window left, less than one of TGS's steps."""
    device = SharedDevice(load=0.5, cost=0.0125 / 2)
    device.run(900)
    assert mean(device.lost[-300:]) <= 0.05
    assert mean(device.used[-300:]) >= 0.3


def test_guaranteed_client_that_pauses_keeps_its_baseline() -> None:
    """The opportunistic client has no limit during the pause, and the old limit within a second of its end."""
    device = SharedDevice()
    device.run(200)
    before = device.limit
    device.load = 0.0
    device.run(8)
    assert device.limit is None
    device.load = 0.6
    device.run(1)
    assert device.limit == pytest.approx(before, rel=0.05)
    device.run(60)
    assert mean(device.lost[-60:]) <= 0.05


def test_a_slower_phase_is_no_loss_for_ever() -> None:
    device = SharedDevice()
    device.run(300)
    device.load, device.speed = 0.3, 50_000.0
    device.run(300)
    assert device.used[-1] >= 0.4
    device.load, device.speed = 0.29, 47_000.0  # lower by 6 %, which TGS does not take for a phase
    device.run(400)
    assert device.used[-1] >= 0.4


def test_a_faster_phase_is_what_counts_from_then_on() -> None:
    device = SharedDevice()
    device.run(300)
    device.speed = 200_000.0
    device.run(300)
    assert device.rate.baseline == pytest.approx(200_000 * WINDOW_SECONDS, rel=0.02)
    assert mean(device.lost[-100:]) <= 0.04


def test_a_loss_that_it_causes_never_becomes_the_baseline() -> None:
    """The client always takes as much as it may. The baseline must not sink a little each time."""
    device = SharedDevice(load=0.9, friction=0.5)
    device.run(4000)
    assert device.rate.baseline == pytest.approx(100_000 * WINDOW_SECONDS, rel=0.01)
    assert mean(device.lost[-2000:]) <= 0.05


@given(st.integers(0, 1 << 30))
@settings(max_examples=tier.strength(15, 250), deadline=None)
def test_noise_of_one_percent_changes_no_limit(seed: int) -> None:
    device = SharedDevice(wobble=lambda second: 0.99 + 0.02 * (hash((seed, second)) % 1000) / 1000)
    device.run(900)
    assert mean(device.lost) <= 0.05
    assert mean(device.used[-300:]) >= 0.2


def test_known_exclusive_rate_is_not_measured_again() -> None:
    known = AdaptiveRate(baseline=500_000)
    assert known.update(500_000, 0, 0) == FIRST_LIMIT / WINDOW_SECONDS
    unknown = AdaptiveRate()
    assert unknown.update(500_000, 0, 0) == MIN_LIMIT / WINDOW_SECONDS
    unknown.update(500_000, 0, 5)
    assert unknown.update(500_000, 0, 10) == FIRST_LIMIT / WINDOW_SECONDS


@pytest.mark.parametrize("room", [250, 5e6, 5e9])
def test_the_first_limit_is_what_the_device_seems_to_have_left(room: float) -> None:
    """The published first limit is no limit for launches of one block, and next to nothing for millions of blocks."""
    rate = AdaptiveRate(baseline=2_000)
    rate.update(2_000, 0, 0, capacity_left=room)
    assert rate.limit == pytest.approx(0.8 * room)


def test_late_capacity_estimate_sets_the_limit_without_a_measured_loss() -> None:
    late, lost = AdaptiveRate(baseline=2_000), AdaptiveRate(baseline=2_000)
    for step, guaranteed in enumerate([2_000, 2_000, 2_000]):
        late.update(guaranteed, FIRST_LIMIT, step * WINDOW_SECONDS)
        lost.update(guaranteed * (0.9 if step == 1 else 1), FIRST_LIMIT, step * WINDOW_SECONDS)
    late.update(2_000, FIRST_LIMIT, 3 * WINDOW_SECONDS, capacity_left=5e6)
    lost.update(2_000, FIRST_LIMIT, 3 * WINDOW_SECONDS, capacity_left=5e6)
    assert late.limit == pytest.approx(0.8 * 5e6) and lost.limit < 2 * FIRST_LIMIT


def test_a_loss_from_before_the_first_limit_does_not_lower_it() -> None:
    """The room is known a second or two after the opportunistic client begins to launch."""
    rate = AdaptiveRate(baseline=2_000)
    rate.update(2_000, None, 0)
    rate.update(1_500, 1_000, 2, capacity_left=250)
    rate.update(1_700, 800, 2 + WINDOW_SECONDS, capacity_left=250)
    assert rate.limit == pytest.approx(0.8 * 250)
    rate.update(2_000, 200, 2 + 2 * WINDOW_SECONDS, capacity_left=250)
    assert rate.limit > 0.8 * 250


def test_a_client_that_catches_up_for_a_moment_does_not_raise_the_baseline() -> None:
    rate = AdaptiveRate(baseline=1e6)
    for window, part in enumerate([1.0, 0.95, 1.05, 1.05, 1.0, 1.0]):
        rate.update(1e6 * part, 1e5, window * WINDOW_SECONDS)
    assert rate.baseline == 1e6


def test_the_limit_moves_by_the_published_steps() -> None:
    rate = AdaptiveRate(baseline=1e7)
    limits = []
    for step, loss in enumerate([0.0, 0.0, 0.02, 0.04, 0.0, 0.05, 0.1, 0.0], start=1):
        rate.update(1e7 * (1 - loss), rate.limit, (step - 1) * WINDOW_SECONDS)
        limits.append(rate.limit)
    first = FIRST_LIMIT
    # The first call only starts the clock.
    assert limits[:4] == [first, first * 1.5 + 1, (first * 1.5 + 1) * 1.5 + 1, pytest.approx(limits[2] / 1.5)]
    # Half of the way back to the limit of the loss, which is more than the published step here.
    assert limits[4] == pytest.approx((limits[3] + limits[2]) / 2)
    assert limits[5] == pytest.approx(limits[4] - max(0.08 * limits[4], 1000))
    assert limits[6] == pytest.approx((limits[5] - max(0.08 * limits[5], 1000)) / 10)
    assert limits[7] == pytest.approx(limits[6] * 1.5 + 1)


def test_an_unused_limit_does_not_grow() -> None:
    """Otherwise a client that suddenly launches more would meet no limit at all."""
    device = SharedDevice(load=0.3, demand=0.1)
    device.run(600)
    assert device.limit is not None
    assert device.limit * device.cost <= 0.1 * 3


def test_a_limit_below_the_size_of_a_launch_grows() -> None:
    """The client makes no launch in most windows, and would wait for minutes otherwise."""
    rate = AdaptiveRate(baseline=1e6)
    rate.update(1e6, 0.0, 0.0, capacity_left=20.0)
    assert rate.limit == 16.0
    for window in range(1, 13):
        rate.update(1e6, 0.0, window * WINDOW_SECONDS)
    assert rate.limit > 1024


class TestLaunchWindow:
    def counted(self, blocks: tuple[int, ...]) -> LaunchWindow:
        window, sum_ = LaunchWindow(), 0
        window.add(0, 0.0)
        for second, more in enumerate(blocks, start=1):
            sum_ += more
            window.add(sum_, float(second))
        return window

    @pytest.mark.parametrize(
        ("blocks", "rate"),
        [
            pytest.param((10, 10, 10, 10, 10), 50, id="blocks-per-window"),
            pytest.param((0, 3, 10, 10, 4, 0), 50, id="beginning-and-end-are-left-out"),
            pytest.param((10, 0, 0, 0, 0, 0, 0), 0, id="nothing-for-a-window"),
            *(pytest.param(few, None, id="not-known-yet") for few in [(), (10, 10), (0, 0)]),
        ],
    )
    def test_rate(self, blocks: tuple[int, ...], rate: int | None) -> None:
        assert self.counted(blocks).rate == rate

    def test_bursts_shorter_than_a_second_count_from_the_beginning_of_their_turns(self) -> None:
        """A turn begins 0.4 s before a reading, with 100 blocks a second, and pauses after it until the turn's end."""
        window, sum_ = LaunchWindow(), 0
        window.add(0, 0.0)
        for second in range(1, 9):
            begins = bool(second % 2)
            sum_ += 40 if begins else 5
            window.add(sum_, float(second), 0.4 if begins else 0.3, begins)
        assert window.rate == pytest.approx(100 * WINDOW_SECONDS)

    def test_time_outside_of_turns_does_not_count(self) -> None:
        window, sum_ = LaunchWindow(), 0
        for second in range(9):
            in_turn = second % 3 != 2
            sum_ += 10 * in_turn
            window.add(sum_, float(second), float(in_turn), in_turn)
        assert window.rate == 50

    def test_a_counter_that_went_back_begins_again(self) -> None:
        window = self.counted((10, 10, 10, 10))
        window.add(5, 5.0)
        window.add(15, 6.0)
        assert window.rate == 50
