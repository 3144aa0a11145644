"""Tests of gangs under every policy: no deadlock and no starvation.

Locks are refused, and keys of a gang differ by device.
"""

from __future__ import annotations

import random

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.queueing.policies import POLICIES

from ..support import tier
from .device_locks import OTHER_USER
from .simulated_host import SimulatedHost, host_of

QUANTUM_SECONDS = 0.5
GANGS = {"xy": ("x", "y"), "yz": ("y", "z"), "xz": ("x", "z"), "all": ("x", "y", "z"), "s": ("x",), "t": ("z",)}


def crowd(policy: str, seed: int) -> SimulatedHost:
    """Return a host with overlapping gangs of different shares and users, some limited; `max_wait` does not help."""
    choose = random.Random(seed)
    host = host_of(*"xyz", policy=policy, time_quantum=QUANTUM_SECONDS, max_wait=86400.0)
    for name, devices in GANGS.items():
        share = choose.choice([0.0, 0.05, 0.2])
        host.add_client(name, Quota(share=share, limit=choose.choice([1.0, 1.0, 0.5])), user=choose.choice("uv"))
        process = host.add_process(name, *devices, drains_in=choose.uniform(0.0, 0.03))
        process.busy = True
        host.call_after(choose.uniform(0, 2), lambda process=process: host.wait_at_gate(process))  # type: ignore[misc]
    return host


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("outsiders", [False, True])
def test_every_gang_has_its_turns(policy: str, outsiders: bool) -> None:
    host = crowd(policy, seed=outsiders)
    choose = random.Random(5)

    def leave(uuid: str) -> None:
        if OTHER_USER in host.locks.holders(uuid):
            host.unlock_by_other(uuid)

    def come() -> None:
        """Lock a device for the coordinator of another user as soon as it is free, for a while."""
        uuid = choose.choice("xyz")
        host.taken_when_free.add(uuid)
        for other in "xyz":
            leave(other)
        host.call_after(choose.uniform(0.2, 1.0), come)

    if outsiders:
        come()
    host.run(5)
    before = {name: host.scheduler.clients[name].turn_count for name in GANGS}
    for _ in range(tier.strength(2, 3)):
        host.run(25)
        for name in GANGS:
            client = host.scheduler.clients[name]
            assert client.turn_count > before[name], f"{name} had no turn in 25 s\n{host.event_log()}"
            before[name] = client.turn_count


@pytest.mark.parametrize("policy", ["fair", "burst_share", "weighted"])
def test_different_virtual_clocks_do_not_starve_a_gang(policy: str) -> None:
    """Clients have contended for one device for an hour, and have hardly used the other device."""
    host = host_of(*"xy", policy=policy, time_quantum=QUANTUM_SECONDS, max_wait=86400.0)
    for name in ("a", "b", "c"):
        host.add_client(name, Quota(share=0.05), user=name)
        host.add_process(name, "x", busy=True)
    host.run(100)
    for name in ("d", "e"):
        host.add_process(name, "y", busy=True)
    host.run(QUANTUM_SECONDS)
    host.add_process("gang", "x", "y", busy=True)
    assert host.run_until(lambda: host.running("y") == "gang") <= 5 * QUANTUM_SECONDS
    host.run(60)
    held = host.granted_seconds("y", host.now - 50)
    assert min(held.get(name, 0.0) for name in ("d", "e", "gang")) > 5
    assert min(host.granted_seconds("x", host.now - 50)[name] for name in "abc") > 5
