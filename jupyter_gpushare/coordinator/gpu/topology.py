"""Which devices are behind which PCIe switch, on which socket: from a file, or from NVML.

The file is JSON: nodes, in them sockets, in them PCIe switches, in them lists of devices, by UUID or index. Names are
free; what a host does not have (switches, say) is one for all:

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

# NVML's distances between two devices (nvmlGpuTopologyLevel_t), the farthest that count as one cell.
_ONE_SWITCH = 20  # PCIe switches only, no host bridge
_ONE_SOCKET = 40  # one NUMA node

Nodes = dict[str, dict[str, dict[str, list[str]]]]

log = logging.getLogger(__name__)


def read_topology_file(path: str) -> dict[str, Any]:
    """The file as it stands, of the right form. Raises Refused, saying what is wrong with it."""
    try:
        nodes = json.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise Refused(f"topology {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"topology {path} is not JSON: {error}") from None
    try:
        if not isinstance(nodes, dict) or not nodes:
            raise Refused("topology: is no object: allowed is an object with a member for each node")
        TopologyTree(_map_devices(nodes, str))
    except Refused as error:
        raise Refused(f"{error} (in {path})") from None
    return nodes


def resolve_uuids(nodes: dict[str, Any], devices: Sequence[str]) -> dict[str, Any]:
    """With UUIDs for indexes among `devices`. Raises Refused for an index that is not there."""

    def uuid(entry: str | int) -> str:
        if not isinstance(entry, int):
            return entry
        if not 0 <= entry < len(devices):
            known = f"0 to {len(devices) - 1}" if devices else "none, no device is known at the start: use UUIDs"
            raise Refused(f"topology: device {entry} is not here: allowed are {known}")
        return devices[entry]

    made = _map_devices(nodes, uuid)
    TopologyTree(made)
    return made


def _map_devices(nodes: dict[str, Any], change: Callable[[Any], str]) -> dict[str, Any]:
    """The same with every device changed; what is not of the right form is left for `Tree` to name."""

    def walk(part: Any) -> Any:
        if isinstance(part, dict):
            return {name: walk(value) for name, value in part.items()}
        if isinstance(part, list):
            return [
                change(entry) if isinstance(entry, str | int) and not isinstance(entry, bool) else entry
                for entry in part
            ]
        return part

    made: dict[str, Any] = walk(nodes)
    return made


def infer_from_distances(devices: Sequence[str], distance: Callable[[str, str], int | None]) -> Nodes:
    """One node, by the distances that NVML tells; None: unknown, which counts as far."""

    def groups(members: Sequence[str], most: int) -> list[list[str]]:
        found: list[list[str]] = []
        for uuid in members:
            near = [group for group in found if any(_is_within(distance(uuid, other), most) for other in group)]
            found = [group for group in found if group not in near]
            found.append([*(other for group in near for other in group), uuid])
        return sorted((sorted(group, key=members.index) for group in found), key=lambda group: members.index(group[0]))

    sockets: dict[str, dict[str, list[str]]] = {}
    switches = 0
    for number, socket in enumerate(groups(devices, _ONE_SOCKET)):
        sockets[f"socket{number}"] = {}
        for switch in groups(socket, _ONE_SWITCH):
            sockets[f"socket{number}"][f"switch{switches}"] = switch
            switches += 1
    return {"node0": sockets} if sockets else {}


def _is_within(distance: int | None, most: int) -> bool:
    return distance is not None and distance <= most
