"""Topology of the devices by PCIe switch, socket and node, from a file or from NVML.

The file is JSON: nodes contain sockets, sockets contain PCIe switches, and these contain lists of devices, by UUID or
index. Names are free. A level that a host does not have, such as switches, has one entry for all devices:

    {"node0": {"socket0": {"switch0": [0, 1], "switch1": [2, 3]}, "socket1": {"switch2": ["GPU-1f…", "GPU-7c…"]}}}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.base.errors import Refused
from ...core.placement.topology_cells import TopologyTree

# NVML's distances between two devices (nvmlGpuTopologyLevel_t): the largest within one topology cell.
_ONE_SWITCH = 20  # PCIe switches only, no host bridge
_ONE_SOCKET = 40  # one NUMA node

Nodes = dict[str, dict[str, dict[str, list[str]]]]

log = logging.getLogger(__name__)


def read_topology_file(path: str) -> dict[str, Any]:
    """Read and check the file. Raises Refused with the error in the file."""
    try:
        nodes = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise Refused(f"topology {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"topology {path} is not JSON: {error}") from None
    try:
        if not isinstance(nodes, dict) or not nodes:
            raise Refused("topology: not an object: allowed is an object with a member for each node")
        TopologyTree(_map_devices(nodes, str))
    except Refused as error:
        raise Refused(f"{error} (in {path})") from None
    return nodes


def resolve_uuids(nodes: dict[str, Any], devices: Sequence[str]) -> dict[str, Any]:
    """Replace the indexes among `devices` by UUIDs. Raises Refused for an index without a device."""

    def uuid(entry: str | int) -> str:
        if not isinstance(entry, int):
            return entry
        if not 0 <= entry < len(devices):
            known = f"0 to {len(devices) - 1}" if devices else "none, no device is known at the start: use UUIDs"
            raise Refused(f"topology: this host has no device {entry}: allowed are {known}")
        return devices[entry]

    resolved = _map_devices(nodes, uuid)
    TopologyTree(resolved)
    return resolved


def _map_devices(nodes: dict[str, Any], change: Callable[[Any], str]) -> dict[str, Any]:
    """Return the nodes with `change` applied to every device; invalid entries stay, for `TopologyTree` to report."""

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: walk(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [
                change(entry) if isinstance(entry, str | int) and not isinstance(entry, bool) else entry
                for entry in value
            ]
        return value

    mapped: dict[str, Any] = walk(nodes)
    return mapped


def infer_from_distances(devices: Sequence[str], distance: Callable[[str, str], int | None]) -> Nodes:
    """Infer the topology of one node from NVML's distances; an unknown distance (None) counts as far."""

    def groups(members: Sequence[str], limit: int) -> list[list[str]]:
        result: list[list[str]] = []
        for uuid in members:
            near = [group for group in result if any(_is_within(distance(uuid, other), limit) for other in group)]
            result = [group for group in result if group not in near]
            result.append([*(other for group in near for other in group), uuid])
        return sorted((sorted(group, key=members.index) for group in result), key=lambda group: members.index(group[0]))

    sockets: dict[str, dict[str, list[str]]] = {}
    switches = 0
    for number, socket in enumerate(groups(devices, _ONE_SOCKET)):
        sockets[f"socket{number}"] = {}
        for switch in groups(socket, _ONE_SWITCH):
            sockets[f"socket{number}"][f"switch{switches}"] = switch
            switches += 1
    return {"node0": sockets} if sockets else {}


def _is_within(distance: int | None, limit: int) -> bool:
    return distance is not None and distance <= limit
