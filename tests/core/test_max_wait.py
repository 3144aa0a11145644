"""Test that `max_wait` bounds each wait under every policy."""

from __future__ import annotations

import random

import pytest

from jupyter_gpushare.core.queueing.policies import POLICIES

from .simulated_host import SimulatedHost, baseline

QUANTUM_SECONDS = 0.5


def mixed_load(seed: int, clients: int = 6, **settings: object) -> SimulatedHost:
    """Return a host with clients that are always busy, clients that run cells, and gangs."""
    choose = random.Random(seed)
    host = SimulatedHost(baseline(**{"time_quantum": QUANTUM_SECONDS, **settings}))
    uuids = [host.add_device(uuid) for uuid in ("d1", "d2")]
    for number in range(clients):
        needs = choose.sample(uuids, choose.choice([1, 1, 2]))
        process = host.add_process(f"client {number}", *needs, drains_in=choose.uniform(0, 0.05))
        if choose.random() < 0.6:
            process.busy = True
            host.call_after(choose.uniform(0, 3), lambda process=process: host.wait_at_gate(process))
        else:
            for cell in range(10):
                began, length = choose.uniform(0, 40), choose.uniform(0.01, 0.6)
                host.call_after(
                    began, lambda p=process, c=cell: [host.start_cell(p.client, str(c)), host.wait_at_gate(p)]
                )
                host.call_after(began + length, lambda p=process, c=cell: host.end_cell(p.client, str(c)))
    return host


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("seed", range(3))
def test_wait_is_at_most_max_wait_and_one_turn_of_each_other_client(seed: int, policy: str) -> None:
    """Check the bound of every policy, gangs included.

    A client that has waited for `max_wait` reserves its devices, and the oldest such client comes first. First come,
    first served needs no `max_wait` for that.
    """
    max_wait = 4.0
    host = mixed_load(seed, policy=policy, max_wait=max_wait)
    others = len(host.scheduler.clients) - 1
    bound = others * (QUANTUM_SECONDS + 0.05) + 0.05 + (0.0 if policy == "fcfs" else max_wait)
    while host.now < 45:
        host.run(0.05)
        for client in host.scheduler.clients.values():
            if client.waiting_since is not None:
                assert host.now - client.waiting_since <= bound, f"{client.id}\n{host.event_log()}"
