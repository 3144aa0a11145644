"""Quotas that change while clients run take effect at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.quota import Quota

from .conftest import MakeWorld
from .world import World


def quota(world: World, client: str, **changes: object) -> None:
    world.feed(ev.QuotaChanged(client, world.scheduler.clients[client].quota.changed(changes)))


@pytest.mark.parametrize("past", [0.0, 600.0])
def test_a_share_holds_from_its_change_on_whatever_was_used_before(make_world: MakeWorld, past: float) -> None:
    world = make_world(policy="fair")
    world.busy("a", "b")
    world.run(past)
    quota(world, "a", share=0.7)
    quota(world, "b", share=0.3)
    assert world.fractions(10.0) == pytest.approx({"a": 0.7, "b": 0.3}, abs=0.05)


@pytest.mark.parametrize("shares", [(0.7, 0.3), (0.9, 0.1), (0.6, 0.3, 0.1), (0.25, 0.25, 0.25, 0.25)])
@pytest.mark.parametrize("quantum", ["auto", 0.2, 2.0])
def test_shares_hold_whatever_the_quantum(
    make_world: MakeWorld, quantum: float | str, shares: tuple[float, ...]
) -> None:
    """Also where turns in proportion would be shorter than one lasts at least."""
    world = make_world(policy="fair", time_quantum=quantum)
    asked = {f"client {number}": share for number, share in enumerate(shares)}
    for name, share in asked.items():
        world.client(name, Quota(share=share))
        world.process(name, busy=True, drains_in=0.001)
    assert world.fractions(30.0) == pytest.approx(asked, abs=0.05)


def test_shares_hold_from_the_change_of_the_policy_on(make_world: MakeWorld) -> None:
    world = make_world()
    world.busy("a", "b")
    world.run(600.0)
    quota(world, "b", share=0.8)
    world.feed(ev.SettingsChanged(replace(world.settings, policy="fair")))
    assert world.fractions(20.0) == pytest.approx({"a": 0.1, "b": 0.9}, abs=0.05), "half of what is left each"


@pytest.mark.parametrize("policy", ["interactive", "fair", "fcfs"])
def test_a_limit_holds_at_once_also_on_an_idle_device(make_world: MakeWorld, policy: str) -> None:
    world = make_world(policy=policy)
    world.process("a", busy=True)
    world.run(600.0)
    quota(world, "a", limit=0.5)
    assert world.fractions(20.0)["a"] == pytest.approx(0.5, abs=0.05)
    quota(world, "a", limit=1.0)
    world.run(2.0)
    assert world.fractions(20.0)["a"] == pytest.approx(1.0, abs=0.01)
