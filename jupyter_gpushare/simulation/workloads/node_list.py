"""Reader of a list of nodes: a CSV file with the columns `sn` (name) and `gpu` (number of devices).

The list of the openb trace (Alibaba clusterdata, cluster-trace-gpu-v2023) has this form.
"""

from __future__ import annotations

from typing import NamedTuple

from .traces import InvalidTrace, csv_rows

COLUMNS = ("sn", "gpu")
MAX_DEVICES = 64  # of a node


class Node(NamedTuple):
    """Node with its number of devices."""

    name: str
    devices: int


def read(path: str) -> list[Node]:
    """Read the nodes that have a device. Raises InvalidTrace, OSError."""
    nodes = [_parse(path, number, row) for number, row in csv_rows(path, COLUMNS)]
    found = [node for node in nodes if node.devices]
    if not found:
        raise InvalidTrace(f"{path}: no node of the list has a GPU")
    if len({node.name for node in found}) < len(found):
        raise InvalidTrace(f"{path}: two nodes have the same name: allowed is each name once")
    return found


def _parse(path: str, number: int, row: dict[str, str]) -> Node:
    name, devices = row["sn"] or "", row["gpu"] or ""
    if not name or not devices.isdecimal() or int(devices) > MAX_DEVICES:
        raise InvalidTrace(
            f"{path}, line {number}: sn={name!r}, gpu={devices!r} (allowed are a name and 0 to {MAX_DEVICES} devices)"
        )
    return Node(name, int(devices))
