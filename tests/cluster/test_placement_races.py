"""Races of servers that choose nodes by old snapshots: the placement of each node keeps its guarantees."""

from __future__ import annotations

from random import Random
from typing import Any

from jupyter_gpushare.cluster.node_choice import order_nodes
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.placement import Placement, PlacementRequest, PlacementSettings, Tenant

from ..support import tier

DEVICES = 2
MEMORY = 80 * 10**9
TENANTS = (Tenant("team", share=1.0, cells={"device": 1}), Tenant("class", max_clients=3))
RACES = tier.strength(2_000, 100_000)


def empty_node() -> Placement:
    placement = Placement(PlacementSettings(tenants=TENANTS))
    for number in range(DEVICES):
        placement.add_device(f"d{number}", "", MEMORY)
    return placement


def snapshot(node: Placement) -> dict[str, Any]:
    return {
        "devices": [{"failed": d.failure or None, "memory_total": d.memory} for d in node.allocations.values()],
        "clients": [{"phase": "idle", "allocated": placed.request.memory or 0} for placed in node.placed.values()],
    }


def request(rng: Random) -> PlacementRequest:
    return PlacementRequest(
        gpus=rng.choice((1, 1, 1, DEVICES)),
        share=rng.choice((0.0, 0.25, 0.5, 1.0)),
        memory=rng.randrange(1, MEMORY // 2),
        exclusion=rng.choice(("", "", "", "alone")),
        anti_affinity=rng.choice(("", "", "apart")),
    )


def check(node: Placement) -> None:
    """Check all guarantees of a node."""
    team = [placed for placed in node.placed.values() if placed.tenant == "team"]
    assert sum(placed.request.share * placed.request.gpus for placed in team) <= 1.0 + 1e-9
    assert sum(placed.tenant == "class" for placed in node.placed.values()) <= 3
    for uuid, device in node.allocations.items():
        requests = list(device.clients.values())
        assert sum(one.share for one in requests) <= 1.0 + 1e-9
        assert len({one.exclusion for one in requests}) <= 1
        assert sum(one.anti_affinity == "apart" for one in requests) <= 1
        if node.owner(uuid) == "team" and any(node.placed[client].tenant == "team" for client in device.clients):
            guests = {client for client in device.clients if node.placed[client].tenant != "team"}
            assert guests <= node.guests_to_preempt


def test_no_race_on_old_snapshots_breaks_a_guarantee() -> None:
    rng = Random(1)
    nodes = {f"n{number}": empty_node() for number in range(4)}
    snapshots = [{name: snapshot(node) for name, node in nodes.items()} for _ in range(3)]  # of each server
    starts = refusals = 0
    for race in range(RACES):
        for server, known in enumerate(snapshots):  # all servers choose before any of them reads again
            wanted, tenant = request(rng), rng.choice(("", "team", "class"))
            for name in order_nodes(known, wanted.gpus):
                try:
                    quota = Quota(share=wanted.share, memory=wanted.memory)
                    devices = nodes[name].place(f"{race} {server}", wanted, tenant, quota)
                except Refused:
                    refusals += 1
                    continue
                assert tenant != "team" or all(nodes[name].owner(uuid) == "team" for uuid in devices)
                starts += 1
                break
        for name, node in nodes.items():
            check(node)
            for client in rng.sample(sorted(node.placed), len(node.placed) // 2):
                node.remove(client)
            if rng.random() < 0.02:
                node.fail("d0", "test")
            elif rng.random() < 0.1:
                node.recover("d0")
            if rng.random() < 0.3:
                rng.choice(snapshots)[name] = snapshot(node)
    assert starts > RACES
    assert refusals > RACES / 2, "old snapshots must lead to refusals"
