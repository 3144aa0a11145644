"""Gangs under every policy: no deadlock and no starvation, also where locks are refused and keys differ by device."""

from __future__ import annotations

import random

import pytest

from jupyter_gpushare.core.policies import POLICIES
from jupyter_gpushare.core.quota import Quota

from .world import OUTSIDER, World, host_of

QUANTUM = 0.5
GANGS = {"xy": ("x", "y"), "yz": ("y", "z"), "xz": ("x", "z"), "all": ("x", "y", "z"), "s": ("x",), "t": ("z",)}


def crowd(policy: str, seed: int) -> World:
    """Gangs that overlap in every way, with different shares and tenants, some limited; `max_wait` is of no help."""
    choose = random.Random(seed)
    world = host_of(*"xyz", policy=policy, time_quantum=QUANTUM, max_wait=86400.0)
    for name, devices in GANGS.items():
        share = choose.choice([0.0, 0.05, 0.2])
        world.client(name, Quota(share=share, limit=choose.choice([1.0, 1.0, 0.5])), tenant=choose.choice("uv"))
        process = world.process(name, *devices, drains_in=choose.uniform(0.0, 0.03))
        process.busy = True
        world.at(choose.uniform(0, 2), lambda process=process: world.want(process))  # type: ignore[misc]
    return world


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("outsiders", [False, True])
def test_every_gang_has_its_turns(policy: str, outsiders: bool) -> None:
    world = crowd(policy, seed=outsiders)
    choose = random.Random(5)

    def leave(uuid: str) -> None:
        if OUTSIDER in world.holders(uuid):
            world.unlock_elsewhere(uuid)

    def come() -> None:
        """Another user's coordinator takes a device as soon as it is free, for a while."""
        uuid = choose.choice("xyz")
        world.slip_in.add(uuid)
        for other in "xyz":
            leave(other)
        world.at(choose.uniform(0.2, 1.0), come)

    if outsiders:
        come()
    world.run(5)
    before = {name: world.scheduler.clients[name].quanta for name in GANGS}
    for _ in range(3):
        world.run(25)
        for name in GANGS:
            client = world.scheduler.clients[name]
            assert client.quanta > before[name], f"{name} had no turn in 25 s\n{world.story()}"
            before[name] = client.quanta


@pytest.mark.parametrize("policy", ["fair", "burst_share", "weighted"])
def test_different_virtual_clocks_do_not_starve_a_gang(policy: str) -> None:
    """One device has been fought over for an hour, the other one hardly used."""
    world = host_of(*"xy", policy=policy, time_quantum=QUANTUM, max_wait=86400.0)
    for name in ("a", "b", "c"):
        world.client(name, Quota(share=0.05), tenant=name)
        world.process(name, "x", busy=True)
    world.run(100)
    for name in ("d", "e"):
        world.process(name, "y", busy=True)
    world.run(QUANTUM)
    world.process("gang", "x", "y", busy=True)
    assert world.run_until(lambda: world.running("y") == "gang") <= 5 * QUANTUM
    world.run(60)
    held = world.held("y", world.now - 50)
    assert min(held.get(name, 0.0) for name in ("d", "e", "gang")) > 5
    assert min(world.held("x", world.now - 50)[name] for name in "abc") > 5
