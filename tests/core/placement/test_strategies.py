"""Tests of the choice of devices by strategy, labels, memory, shares, and device names."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.core.base.errors import NoRoom, Refused, TooManyDevices
from jupyter_gpushare.core.placement import STRATEGIES, PlacementRequest, PlacementSettings
from jupyter_gpushare.units import format_size

from .placements import GIB, MEMORY, TWO_SOCKETS, make_placement, place_client


def test_clients_are_spread_by_default() -> None:
    placement = make_placement(2)
    assert [place_client(placement, name) for name in "abcd"] == [("d0",), ("d1",), ("d0",), ("d1",)]
    placement.remove("b")
    assert place_client(placement, "e") == ("d1",)


def test_ties_go_to_the_device_with_the_smallest_requests() -> None:
    placement = make_placement(2)
    place_client(placement, "a", share=0.5)
    place_client(placement, "b", share=0.2)
    assert place_client(placement, "c") == ("d1",)


def test_packing_leaves_whole_devices() -> None:
    placement = make_placement(3, PlacementSettings(strategy="pack"))
    for name, share in (("a", 0.5), ("b", 0.6), ("c", 0.3), ("d", 0.1)):
        place_client(placement, name, share=share)
    assert [len(placement.clients_on(uuid)) for uuid in ("d0", "d1", "d2")] == [1, 3, 0]
    assert placement.placed["c"].devices == ("d1",), "d1 has 0.4 left, d0 has 0.5"
    assert place_client(placement, "whole", share=1.0) == ("d2",)


def test_guaranteed_shares_never_exceed_a_device() -> None:
    placement = make_placement(2)
    place_client(placement, "a", share=0.7)
    place_client(placement, "b", share=0.6)
    with pytest.raises(Refused) as refused:
        place_client(placement, "c", share=0.5)
    assert str(refused.value) == (
        "no 1 device for share=0.5: device 0 (Device 0) has 0.3 of its share left; "
        "device 1 (Device 1) has 0.4 of its share left"
    )
    assert place_client(placement, "c", share=0.4) == ("d1",)
    assert place_client(placement, "d") == ("d0",), "a client without a share takes none"


def test_a_share_can_be_raised_up_to_what_is_left() -> None:
    placement = make_placement(1)
    place_client(placement, "a", share=0.4)
    place_client(placement, "b", share=0.4)
    placement.change("a", PlacementRequest(share=0.6))
    with pytest.raises(Refused, match=r"share=0.7 is not available: device 0 .* has 0.6 of its share left"):
        placement.change("a", PlacementRequest(share=0.7))
    assert placement.placed["a"].request.share == 0.6


def test_memory_goes_where_it_fits_and_may_exceed_the_device() -> None:
    placement = make_placement(2)
    place_client(placement, "a", fraction=0.6)
    assert place_client(placement, "b", fraction=0.5) == ("d1",)
    assert place_client(placement, "c", fraction=0.5) == ("d1",), "its memory fits on d1, and not on d0"
    assert place_client(placement, "d", fraction=0.5) == ("d0",), "its memory fits nowhere, and d0 has fewest clients"


def test_memory_is_promised_up_to_the_bound() -> None:
    placement = make_placement(1, PlacementSettings(oversubscription=1.5))
    place_client(placement, "a", fraction=1.0)
    place_client(placement, "b", memory=40 * GIB)
    with pytest.raises(Refused, match=f"has at most 0 B left of the {format_size(1.5 * MEMORY)} that may be asked for"):
        place_client(placement, "c", memory=1)


def test_memory_that_cannot_move_must_fit() -> None:
    placement = make_placement(1)
    place_client(placement, "a", fraction=0.6)
    with pytest.raises(Refused, match="B left of"):
        place_client(placement, "b", fraction=0.5, movable=False)


def test_affinity_is_the_same_device() -> None:
    placement = make_placement(3)
    first = place_client(placement, "a", affinity="pair")
    place_client(placement, "other")
    assert place_client(placement, "b", affinity="pair") == first
    placement.remove("a")
    assert place_client(placement, "c", affinity="pair") == first
    placement.remove("b")
    placement.remove("c")
    place_client(placement, "x")
    assert place_client(placement, "d", affinity="pair") != place_client(placement, "e", affinity="none"), (
        "the device is free again"
    )


def test_impossible_affinity_is_refused() -> None:
    placement = make_placement(2)
    place_client(placement, "a", affinity="pair", share=0.8)
    with pytest.raises(Refused, match=r"device 0 .* has 0.2 of its share left; device 1 .* no client with affinity"):
        place_client(placement, "b", affinity="pair", share=0.5)


def test_a_gang_with_affinity_has_the_devices_of_the_others_first() -> None:
    placement = make_placement(4)
    first = place_client(placement, "a", affinity="pair", gpus=2)
    assert set(place_client(placement, "b", affinity="pair", gpus=3)) > set(first)
    assert set(place_client(placement, "c", affinity="pair")) < {"d0", "d1", "d2"}


def test_anti_affinity_is_another_device() -> None:
    placement = make_placement(2)
    assert {place_client(placement, name, anti_affinity="rank") for name in "ab"} == {("d0",), ("d1",)}
    with pytest.raises(Refused, match="has a client with anti_affinity=rank"):
        place_client(placement, "c", anti_affinity="rank")


def test_exclusion_shares_only_with_its_own() -> None:
    placement = make_placement(2)
    team = place_client(placement, "a", exclusion="team")
    others = place_client(placement, "b")
    assert others != team
    assert place_client(placement, "c", exclusion="team") == team
    assert place_client(placement, "d") == others
    with pytest.raises(Refused, match=r"device 0 .* has clients without exclusion=mine"):
        place_client(placement, "e", exclusion="mine")
    with pytest.raises(Refused, match="is kept for clients with exclusion=team"):
        place_client(placement, "f", devices=team)


@pytest.mark.parametrize(("name", "got"), [("d2", "d2"), ("1", "d1"), ("device 0", "d0")])
def test_a_device_can_be_named(name: str, got: str) -> None:
    assert place_client(make_placement(3), "a", devices=(name,)) == (got,)


def test_several_can_be_named_to_choose_from() -> None:
    placement = make_placement(3)
    assert place_client(placement, "a", devices=("1", "2")) == ("d1",)
    assert place_client(placement, "b", devices=("1", "2")) == ("d2",)
    assert place_client(placement, "c", devices=("1", "2"), gpus=2) == ("d1", "d2")
    with pytest.raises(TooManyDevices, match=r"gpus=3 is more than device=1\+2 names: 2"):
        place_client(placement, "d", devices=("1", "2"), gpus=3)


def test_a_client_gets_one_slice_at_most() -> None:
    placement = make_placement(2)
    for number in range(2):
        placement.add_device(f"s{number}", "Slice", MEMORY, parent="gpu")
    assert place_client(placement, "one", devices=("Slice",)) == ("s0",)
    assert place_client(placement, "two", gpus=2) == ("d0", "d1")
    with pytest.raises(TooManyDevices, match=r"gpus=3 .* without MIG slices: 2 \(Device 0, Device 1\)"):
        place_client(placement, "three", gpus=3)
    with pytest.raises(Refused, match=r"device 2 \(Slice\) is a MIG slice, of which a client can use only one"):
        place_client(placement, "mixed", devices=("d0", "s0"), gpus=2)


@pytest.mark.parametrize(
    ("request_options", "may_wait"),
    [
        ({"share": 0.6}, True),
        ({"share": 0.6, "gpus": 2}, True),
        ({"anti_affinity": "spread"}, True),
        ({"exclusion": "mine"}, True),
        ({"memory": 60 * GIB}, True),
        ({"share": 0.6, "devices": ("d1",)}, True),
        ({"share": 0.6, "devices": ("failed",)}, False),
        ({"memory": 100 * GIB}, False),
        ({"devices": ("H100",)}, False),
    ],
)
def test_a_refusal_for_the_clients_that_are_there_has_a_reason_of_its_own(
    request_options: dict[str, Any], may_wait: bool
) -> None:
    placement = make_placement(2, PlacementSettings(oversubscription=1.0))
    placement.add_device("failed", "Failed", MEMORY)
    placement.fail("failed", "Xid 79")
    for name in ("a", "b"):
        place_client(placement, name, share=0.5, anti_affinity="spread", memory=40 * GIB)
    with pytest.raises(Refused) as refused:
        place_client(placement, "c", **request_options)
    assert isinstance(refused.value, NoRoom) == may_wait
    placement.remove("a")
    placement.remove("b")
    if may_wait:
        assert place_client(placement, "c", **request_options)


def test_unknown_device_is_refused_with_the_available_ones() -> None:
    with pytest.raises(Refused, match=r"device='H100' does not exist: .* device 0 \(Device 0\); device 1 \(Device 1\)"):
        place_client(make_placement(2), "a", devices=("H100",))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_devices_that_fail_are_avoided(strategy: str) -> None:
    placement = make_placement(2, PlacementSettings(strategy=strategy))
    place_client(placement, "a", share=0.1)
    bad = placement.placed["a"].devices[0]
    assert placement.fail(bad, "Xid 79") == ("a",)
    assert {place_client(placement, name, share=0.1) for name in "bcd"} == {("d1" if bad == "d0" else "d0",)}
    with pytest.raises(Refused, match=r"has failed \(Xid 79\)"):
        place_client(placement, "e", devices=(bad,))
    placement.recover(bad)
    assert place_client(placement, "e", devices=(bad,)) == (bad,)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gang_is_placed_close_together_or_not_at_all(strategy: str) -> None:
    placement = make_placement(8, PlacementSettings(strategy=strategy, topology=TWO_SOCKETS))
    place_client(placement, "a", devices=("d0",), share=0.5)
    place_client(placement, "b", devices=("d4",), share=0.5)
    pair = place_client(placement, "pair", gpus=2, share=1.0)
    assert pair in {("d2", "d3"), ("d6", "d7")}
    four = place_client(make_placement(8, placement.settings), "four", gpus=4, share=1.0)
    assert four in {("d0", "d1", "d2", "d3"), ("d4", "d5", "d6", "d7")}
    with pytest.raises(Refused, match="no 6 devices for share=1"):
        place_client(placement, "six", gpus=6, share=1.0)
    assert "six" not in placement.placed
    assert [len(placement.clients_on(f"d{n}")) for n in range(8)].count(0) == 4


def test_a_gang_never_spans_nodes() -> None:
    two_nodes = {name: {"s": {"w": [f"d{2 * n}", f"d{2 * n + 1}"]}} for n, name in enumerate(("n0", "n1"))}
    placement = make_placement(4, PlacementSettings(topology=two_nodes))
    place_client(placement, "a", gpus=2, share=0.6)
    assert place_client(placement, "b", gpus=2, share=0.6) == ("d2", "d3")
    with pytest.raises(Refused, match="is free, but too few other devices are"):
        place_client(placement, "c", gpus=3)


def test_more_devices_than_there_are_would_wait_for_ever() -> None:
    with pytest.raises(TooManyDevices, match=r"gpus=3 is more than there are here: 2 \(Device 0, Device 1\)"):
        place_client(make_placement(2), "a", gpus=3)


def test_client_without_devices_is_placed_by_its_processes() -> None:
    placement = make_placement(0)
    assert place_client(placement, "a", share=0.5) == ()
    placement.add_device("d0", "", 0)
    placement.move("a", ("d0",))
    assert placement.clients_on("d0") == ("a",)
    with pytest.raises(Refused, match=r"has 0.5 of its share left"):
        place_client(placement, "b", share=0.6)


def test_strategies_change_live() -> None:
    placement = make_placement(2)
    place_client(placement, "a", share=0.2)
    placement.configure(PlacementSettings(strategy="pack"))
    assert place_client(placement, "b", share=0.2) == ("d0",)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"strategy": "best"}, "placement='best' is unknown: allowed are spread, pack, fgd"),
        ({"oversubscription": 0.5}, "oversubscription=0.5 is out of range: allowed is 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(Refused, match=message):
        PlacementSettings(**wrong)  # type: ignore[arg-type]
