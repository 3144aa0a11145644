"""Tests of the share rule (elastic limits of GaiaGPU), which divides a device among colocated clients.

Time is virtual, and clients use what they demand within their limits.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.throttle.share_rule import MAX_UTILISATION, TICK_SECONDS, TICKS_PER_CHANGE, ElasticLimits

from ..support import tier

INTERVAL = TICK_SECONDS * TICKS_PER_CHANGE


class Crowd:
    """Clients of one device. `demands`: the fraction of the device that each client would use now."""

    def __init__(self, **requests: float) -> None:
        self.limits = ElasticLimits()
        self.limits.set_requests(requests)
        self.demands = dict.fromkeys(requests, 0.0)
        self.used = dict.fromkeys(requests, 0.0)
        self.now = 0.0
        self.limits.update({}, 0.0)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += TICK_SECONDS
            asked = {client: min(demand, self.limits.limit(client)) for client, demand in self.demands.items()}
            crowd = max(1.0, sum(asked.values()))
            self.used = {client: part / crowd for client, part in asked.items()}
            self.limits.update(asked, self.now)


def test_each_client_gets_its_request_and_capacity_is_used() -> None:
    crowd = Crowd(a=0.3, b=0.6)
    crowd.demands = {"a": 1.0, "b": 1.0}
    for _ in range(50):
        crowd.run(INTERVAL)
        assert crowd.used["a"] >= 0.3 - 1e-6
        assert crowd.used["b"] >= 0.6 - 1e-6


def test_idle_capacity_is_shared_out_by_a_tenth_of_the_request_at_a_time() -> None:
    crowd = Crowd(a=0.2, b=0.5)
    crowd.demands["a"] = 1.0
    seen = []
    for _ in range(20):
        seen.append(round(crowd.used["a"], 3))
        crowd.run(INTERVAL)
    assert seen[2:6] == pytest.approx([0.22, 0.24, 0.26, 0.28], abs=0.021)


def test_a_tenth_of_the_device_is_not_shared_out() -> None:
    crowd = Crowd(a=0.2, b=0.5)
    crowd.demands["a"] = 1.0
    crowd.run(60 * INTERVAL)
    assert MAX_UTILISATION - 0.06 <= crowd.used["a"] <= MAX_UTILISATION + 0.02


def test_shared_out_capacity_is_returned() -> None:
    """Within two intervals after the owner becomes active, it has its request."""
    crowd = Crowd(a=0.2, b=0.7)
    crowd.demands["a"] = 1.0
    crowd.run(60 * INTERVAL)
    crowd.demands["b"] = 1.0
    crowd.run(2 * INTERVAL)
    assert crowd.used["b"] >= 0.7 - 1e-6
    assert crowd.used["a"] >= 0.2 - 1e-6


def test_light_steady_client_gets_its_share() -> None:
    crowd = Crowd(a=0.2, b=0.7)
    crowd.demands = {"a": 1.0, "b": 0.1}
    crowd.run(60 * INTERVAL)
    assert crowd.used["a"] >= 0.7
    crowd.demands["b"] = 1.0
    crowd.run(2 * INTERVAL)
    assert crowd.used["b"] >= 0.7 - 1e-6


def test_a_newcomer_finds_what_it_requests() -> None:
    crowd = Crowd(a=0.4)
    crowd.demands["a"] = 1.0
    crowd.run(60 * INTERVAL)
    crowd.limits.set_requests({"a": 0.4, "b": 0.6})
    assert crowd.limits.limit("a") == 0.4
    assert crowd.limits.limit("b") == 0.6


def test_setting_the_same_quota_again_changes_nothing() -> None:
    crowd = Crowd(a=0.4)
    crowd.demands["a"] = 1.0
    crowd.run(10 * INTERVAL)
    limit = crowd.limits.limit("a")
    crowd.limits.set_requests({"a": 0.4})
    assert crowd.limits.limit("a") == limit > 0.4


@given(
    st.lists(st.floats(0.05, 0.3), min_size=2, max_size=3),
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=30),
)
@settings(max_examples=tier.strength(30, 600), deadline=None)
def test_limits_stay_between_the_request_and_the_whole_device(requests: list[float], phases: list[list[float]]) -> None:
    crowd = Crowd(**{f"c{number}": request for number, request in enumerate(requests)})
    for demands in phases:
        crowd.demands = {client: demand for client, demand in zip(crowd.demands, demands, strict=False)}
        crowd.run(1.5 * INTERVAL)
        for client, request in zip(crowd.demands, requests, strict=True):
            assert request <= crowd.limits.limit(client) <= 1.0
