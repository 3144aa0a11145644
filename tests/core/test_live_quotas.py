"""Tests of quotas and policies that change while clients run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev

from .conftest import MakeHost
from .simulated_host import SimulatedHost


def quota(host: SimulatedHost, client: str, **changes: object) -> None:
    host.handle_event(ev.QuotaChanged(client, host.scheduler.clients[client].quota.with_changes(changes)))


@pytest.mark.parametrize("past", [0.0, 600.0])
def test_a_share_holds_from_its_change_on_whatever_was_used_before(make_host: MakeHost, past: float) -> None:
    host = make_host(policy="fair")
    host.start_busy("a", "b")
    host.run(past)
    quota(host, "a", share=0.7)
    quota(host, "b", share=0.3)
    assert host.fractions(10.0) == pytest.approx({"a": 0.7, "b": 0.3}, abs=0.05)


@pytest.mark.parametrize("shares", [(0.7, 0.3), (0.9, 0.1), (0.6, 0.3, 0.1), (0.25, 0.25, 0.25, 0.25)])
@pytest.mark.parametrize("quantum", ["auto", 0.2, 2.0])
def test_shares_hold_whatever_the_quantum(make_host: MakeHost, quantum: float | str, shares: tuple[float, ...]) -> None:
    """The shares hold even if turns in proportion would be shorter than the shortest turn."""
    host = make_host(policy="fair", time_quantum=quantum)
    asked = {f"client {number}": share for number, share in enumerate(shares)}
    for name, share in asked.items():
        host.add_client(name, Quota(share=share))
        host.add_process(name, busy=True, drains_in=0.001)
    assert host.fractions(30.0) == pytest.approx(asked, abs=0.05)


def test_shares_hold_from_the_change_of_the_policy_on(make_host: MakeHost) -> None:
    host = make_host()
    host.start_busy("a", "b")
    host.run(600.0)
    quota(host, "b", share=0.8)
    host.handle_event(ev.SettingsChanged(replace(host.settings, policy="fair")))
    assert host.fractions(20.0) == pytest.approx({"a": 0.1, "b": 0.9}, abs=0.05), "the free time in equal parts"


@pytest.mark.parametrize("policy", ["interactive", "fair", "fcfs"])
def test_a_limit_holds_at_once_also_on_an_idle_device(make_host: MakeHost, policy: str) -> None:
    host = make_host(policy=policy)
    host.add_process("a", busy=True)
    host.run(600.0)
    quota(host, "a", limit=0.5)
    assert host.fractions(20.0)["a"] == pytest.approx(0.5, abs=0.05)
    quota(host, "a", limit=1.0)
    host.run(2.0)
    assert host.fractions(20.0)["a"] == pytest.approx(1.0, abs=0.01)
