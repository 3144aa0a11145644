"""Tests of placement on the devices of many nodes, with cells of tenants."""

from __future__ import annotations

import pytest

from jupyter_gpushare.bench import scale
from jupyter_gpushare.simulation.cluster.placement_costs import PlacementCosts

from ...support import tier
from .placements import GIB, make_tenant_placement, place_client


def topology(nodes: int, devices: int = 2) -> dict[str, object]:
    return {f"n{n}": {"s": {"w": [f"d{n * devices + d}" for d in range(devices)]}} for n in range(nodes)}


# A busy machine makes single decisions slow, also by their processor time, so the short tier compares medians.
MOST, ALL = tier.strength("p50", "p99"), tier.strength("p50", "max")


def test_clients_and_nodes_come_and_go_in_time_with_tenants() -> None:
    figures = PlacementCosts("spread", nodes=200, tenants=10).measure(changes=1000, gangs=20)
    for situation in ("", "_beside_lost_node"):
        assert figures[f"one_device{situation}_us"][MOST] < 5_000
        assert figures[f"one_device{situation}_leaves_us"][MOST] < 5_000
    for event in ("arrives", "is_lost", "comes_back"):
        assert figures[f"node_{event}_ms"][ALL] < 50
    whole = {"nodes": 200, "devices": 1600, "clients": 8000, "tenants": figures}
    assert "node arrives" in "\n".join(scale.format_figures({"placement": whole}))


@pytest.mark.parametrize("strategy", ["spread", "pack", "fgd"])
def test_a_client_is_placed_in_time_without_tenants(strategy: str) -> None:
    figures = PlacementCosts(strategy, nodes=200, tenants=0).measure(changes=1000, gangs=5)
    assert figures["one_device_us"][MOST] < 1_000


def test_a_cell_leaves_its_failed_node_when_its_last_client_leaves() -> None:
    placement = make_tenant_placement(6, topology(3), a={"node": 1}, b={"node": 1})
    place_client(placement, "one", "a")
    failed = placement.placed["one"].devices[0]
    placement.fail(failed, "test")
    assert placement.owner(failed) == "a", "the cell stays while a client of its tenant is there"
    placement.remove("one")
    assert placement.owner(failed) == ""
    (device,) = place_client(placement, "two", "a")
    assert placement.owner(device) == "a"
    assert not placement.allocations[device].failure


def test_spread_takes_the_device_with_the_fewest_clients_that_has_room() -> None:
    placement = make_tenant_placement(4)
    for number, part in enumerate((70, 60, 50, 10)):
        place_client(placement, f"c{number}", memory=part * GIB)
    place_client(placement, "small", memory=10 * GIB)
    assert [len(device.clients) for device in placement.allocations.values()] == [1, 1, 1, 2]
    assert place_client(placement, "large", memory=55 * GIB) == ("d3",)


def test_a_guest_gets_the_best_device_of_all_cells() -> None:
    placement = make_tenant_placement(4, None, a={"device": 2}, b={"device": 2})
    first = [place_client(placement, f"guest{n}")[0] for n in range(4)]
    assert sorted(first) == ["d0", "d1", "d2", "d3"]
    place_client(placement, "of-a", "a")
    claimed = placement.placed["of-a"].devices
    assert place_client(placement, "late") != claimed
