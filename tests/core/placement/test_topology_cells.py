"""Tests of the allocation of topology cells, which splits few cells and merges free cells."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.placement.cell_packing import pack_cells
from jupyter_gpushare.core.placement.topology_cells import LEVELS, BuddyAllocator, TopologyCell, TopologyTree

from .placements import TWO_SOCKETS


@st.composite
def trees(draw: st.DrawFn, most: int = 3) -> dict[str, Any]:
    """Draw hosts of any shape, even asymmetric hosts."""
    sizes = st.integers(1, most)
    numbers = iter(range(1000))
    return {
        f"n{n}": {
            f"s{s}": {f"w{w}": [f"d{next(numbers)}" for _ in range(draw(sizes))] for w in range(draw(sizes))}
            for s in range(draw(sizes))
        }
        for n in range(draw(st.integers(1, 2)))
    }


def disjoint(cells: list[TopologyCell]) -> bool:
    return not any(a is not b and a.overlaps(b) for a in cells for b in cells)


def test_the_smallest_larger_cell_is_split_and_merged_again() -> None:
    tree = TopologyTree(TWO_SOCKETS)
    buddy = BuddyAllocator(tree)
    first = buddy.find_free(0)
    assert first is not None
    buddy.allocate(first)
    assert sorted(cell.path for cell in buddy.free) == ["n/s0/w0/d1", "n/s0/w1", "n/s1"]
    second = buddy.find_free(1)
    assert second is not None
    assert second.path == "n/s0/w1", "the switch of a split socket, so that the other socket stays whole"
    buddy.release(first)
    assert sorted(cell.path for cell in buddy.free) == ["n"]


def test_cell_that_is_not_free_cannot_be_taken() -> None:
    tree = TopologyTree(TWO_SOCKETS)
    buddy = BuddyAllocator(tree)
    buddy.allocate(tree.levels[1][0])
    with pytest.raises(ValueError, match="n/s0 is not free"):
        buddy.allocate(tree.levels[2][0])
    with pytest.raises(ValueError, match="n/s1 is free already"):
        buddy.release(tree.levels[2][1])


def test_failed_devices_are_left_aside_and_whole_cells_stay_whole() -> None:
    tree = TopologyTree(TWO_SOCKETS)
    buddy = BuddyAllocator(tree)
    tree.set_failed("d0", True)
    assert getattr(buddy.find_free(2), "path", "") == "n/s1"
    buddy.allocate(tree.levels[2][1])
    buddy.release(tree.levels[2][1])
    buddy.allocate(tree.leaves["d7"])
    buddy.release(tree.leaves["d7"])
    buddy.allocate(tree.levels[1][3])
    assert getattr(buddy.find_free(0), "path", "") != "n/s0/w0/d0"
    assert buddy.find_free(2) is None


@given(nodes=trees(), data=st.data())
def test_any_sequence_leaves_free_cells_disjoint_and_as_large_as_they_can_be(
    nodes: dict[str, Any], data: st.DataObject
) -> None:
    tree = TopologyTree(nodes)
    buddy = BuddyAllocator(tree)
    taken: list[TopologyCell] = []
    for _ in range(data.draw(st.integers(1, 20))):
        if taken and data.draw(st.booleans()):
            buddy.release(taken.pop(data.draw(st.integers(0, len(taken) - 1))))
        else:
            level = data.draw(st.integers(0, 3))
            cell = buddy.find_free(level)
            has_one = any(not any(c.overlaps(other) for other in taken) for c in tree.levels[level])
            assert (cell is not None) == has_one
            if cell:
                buddy.allocate(cell)
                taken.append(cell)
        assert disjoint([*taken, *buddy.free])
        assert {uuid for cell in [*taken, *buddy.free] for uuid in cell.devices} == set(tree.leaves)
        assert not any(all(part in buddy.free for part in cell.children) for cell in chain(*tree.levels[1:]))
    for cell in taken:
        buddy.release(cell)
    assert set(buddy.free) == set(tree.roots)


def exists(tree: TopologyTree, free: set[str], counts: list[int], failed: set[str]) -> bool:
    """Return whether places exist, by trying all of them."""
    level = max((level for level, count in enumerate(counts) if count), default=None)
    if level is None:
        return True
    rest = [count - (other == level) for other, count in enumerate(counts)]
    cells = [set(cell.devices) for cell in tree.levels[level]]
    return any(exists(tree, free - cell, rest, failed) for cell in cells if cell <= free and not cell & failed)


@given(nodes=trees(most=2), data=st.data())
def test_packing_finds_places_exactly_when_there_are_some(nodes: dict[str, Any], data: st.DataObject) -> None:
    tree = TopologyTree(nodes)
    failed = data.draw(st.sets(st.sampled_from(sorted(tree.leaves)), max_size=2))
    counts = [data.draw(st.integers(0, 2)) for _ in LEVELS]
    for uuid in failed:
        tree.set_failed(uuid, True)
    found = pack_cells(tree.roots, counts)
    assert (found is not None) == exists(tree, set(tree.leaves), counts, failed)
    if found:
        assert [len(cells) for cells in found] == counts
        assert disjoint(list(chain(*found)))
        assert not failed & {uuid for cells in found for cell in cells for uuid in cell.devices}


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"n": {"s": {"w": ["d0", "d0"]}}}, "switch n/s/w has device d0, which is at n/s/w/d0 already"),
        ({"n": {"s": {"w": []}}}, "switch n/s/w is empty: allowed are one device or more"),
        ({"n": {"s": ["d0"]}}, "socket n/s is not an object: allowed is an object with a member for each switch"),
        ({"n": {"s": {"w": "d0"}}}, "switch n/s/w is no list: allowed is a list of device UUIDs"),
    ],
)
def test_invalid_topology_is_refused(nodes: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        TopologyTree(nodes)
