"""Tests of topologies from files and from the distances of NVML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator.gpu import topology
from jupyter_gpushare.core.base.errors import Refused


def write(folder: Path, content: Any) -> str:
    file = folder / "topology.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


def test_a_file_names_devices_by_uuid_or_index(tmp_path: Path) -> None:
    nodes = topology.read_topology_file(write(tmp_path, {"n": {"s": {"w": [1, "GPU-a"]}}}))
    assert topology.resolve_uuids(nodes, ["GPU-x", "GPU-y"]) == {"n": {"s": {"w": ["GPU-y", "GPU-a"]}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "not an object: allowed is an object with a member for each node"),
        ({"n": {"s": {"w": [True]}}}, "switch n/s/w is no list"),
        ({"n": {"s": {"w": [0, 0]}}}, "has device 0, which is at n/s/w/0 already"),
    ],
)
def test_invalid_file_is_refused_with_the_position(tmp_path: Path, content: Any, message: str) -> None:
    path = write(tmp_path, content)
    with pytest.raises(Refused) as refused:
        topology.read_topology_file(path)
    assert message in str(refused.value)
    assert path in str(refused.value)


@pytest.mark.parametrize(
    ("index", "devices", "message"), [(2, ["a", "b"], "allowed are 0 to 1"), (0, [], "no device is known at the start")]
)
def test_an_index_that_is_not_there_is_named(index: int, devices: list[str], message: str) -> None:
    with pytest.raises(Refused, match=f"has no device {index}: .*{message}"):
        topology.resolve_uuids({"n": {"s": {"w": [index]}}}, devices)


def test_the_same_device_by_index_and_uuid_is_refused() -> None:
    with pytest.raises(Refused, match="already"):
        topology.resolve_uuids({"n": {"s": {"w": [0, "GPU-a"]}}}, ["GPU-a"])


def test_distances_become_switches_and_sockets() -> None:
    """The first socket has two switches with two devices each; the second socket has one device."""
    near = {("a", "b"): 10, ("c", "d"): 20, ("a", "c"): 40, ("a", "d"): 40, ("b", "c"): 30, ("b", "d"): 40}

    def distance(one: str, other: str) -> int | None:
        return near.get((min(one, other), max(one, other)), 50)

    assert topology.infer_from_distances("abcde", distance) == {
        "node0": {"socket0": {"switch0": ["a", "b"], "switch1": ["c", "d"]}, "socket1": {"switch2": ["e"]}}
    }


def test_unknown_distances_count_as_far() -> None:
    inferred = topology.infer_from_distances("ab", lambda one, other: None)
    assert inferred == {"node0": {"socket0": {"switch0": ["a"]}, "socket1": {"switch1": ["b"]}}}
    assert topology.infer_from_distances("", lambda one, other: None) == {}
