"""Tests of fragmentation gradient descent (FGD), with typical requests learnt from placed clients."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.placement import Placement, PlacementRequest, PlacementSettings
from jupyter_gpushare.core.placement.fragmentation_strategy import TypicalRequests, fragmentation

from ...support import tier
from .placements import make_placement, place_client

FGD = PlacementSettings(strategy="fgd")


def free_of(placement: Placement) -> dict[str, list[int]]:
    """Return the thousandths left on the devices of each node."""
    nodes: dict[str, list[int]] = {}
    for device in placement.allocations.values():
        nodes.setdefault(device.node, []).append(device.free_thousandths)
    return nodes


def test_room_that_a_request_cannot_use_is_fragmented() -> None:
    assert fragmentation([1000, 400], [((500, 1), 1.0)]) == 400
    assert fragmentation([1000, 400], [((500, 2), 1.0)]) == 1400, "all of it, since no two devices have room"
    assert fragmentation([1000, 400], [((500, 1), 0.5), ((300, 1), 0.5)]) == 200


def test_placement_avoids_an_unusable_rest() -> None:
    placement = make_placement(2, FGD)
    for number in range(300):
        place_client(placement, f"t{number}", share=0.6 if number % 2 else 0.4)
        placement.remove(f"t{number}")
    place_client(placement, "a", share=0.4)
    assert place_client(placement, "b", share=0.3) == ("d1",), "on the device of a, an unusable 0.3 would be left"


@settings(deadline=None, max_examples=tier.strength(30, 600))
@given(
    seed=st.integers(0, 1000),
    nodes=st.integers(1, 4),
    each=st.integers(1, 4),
    asks=st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 0.6, 1.0]), st.sampled_from([1, 1, 1, 2])), max_size=25),
)
def test_each_client_goes_where_fragmentation_grows_least(
    seed: int, nodes: int, each: int, asks: list[tuple[float, int]]
) -> None:
    shuffled = random.Random(seed)
    topology = {f"n{n}": {"s": {"w": [f"d{n * each + d}" for d in range(each)]}} for n in range(nodes)}
    placement = make_placement(nodes * each, PlacementSettings(strategy="fgd", topology=topology))
    for number, (share, gpus) in enumerate(asks):
        if placement.placed and shuffled.random() < 0.3:
            placement.remove(shuffled.choice(sorted(placement.placed)))
        before = free_of(placement)
        weights = list(placement._typical_requests.weights.items())
        size = round(share * 1000)

        def growth(free: list[int], taken: list[int], size: int = size, weights: object = weights) -> float:
            after = list(free)
            for one in taken:
                after[after.index(one)] -= size
            return fragmentation(after, weights) - fragmentation(free, weights)  # type: ignore[arg-type]

        options = []
        for free in before.values():
            enough = sorted(one for one in free if one >= size)
            if gpus == 1:
                options += [growth(free, [one]) for one in set(enough)]
            elif len(enough) >= gpus:
                options.append(growth(free, enough[:gpus]))
        try:
            devices = placement.place(f"c{number}", PlacementRequest(gpus=gpus, share=share))
        except Refused:
            assert not options
            continue
        node = placement.allocations[devices[0]].node
        grown = fragmentation(free_of(placement)[node], weights) - fragmentation(before[node], weights)
        assert grown == pytest.approx(min(options))


def test_typical_requests_follow_the_placed_requests() -> None:
    typical = TypicalRequests(window=300)
    before = typical.version
    for _ in range(300):
        typical.add(333, 1)
    assert typical.weights == {(340, 1): 1.0}
    assert typical.version > before
    for _ in range(300):
        typical.add(1000, 8)
    assert typical.weights[1000, 8] > 0.8
    for _ in range(150):
        typical.add(1000, 8)
    version = typical.version
    for _ in range(300):
        typical.add(1000, 8)
    typical.add(0, 1)
    assert typical.version == version, "without new requests, the weights stay"


def test_clients_that_ask_for_nothing_are_spread() -> None:
    placement = make_placement(3, FGD)
    assert len({place_client(placement, name) for name in "abc"}) == 3
