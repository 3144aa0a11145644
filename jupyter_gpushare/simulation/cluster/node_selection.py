"""Selection of a node for each client of a simulated cluster, by the cluster daemon's rule or by that of the servers.

Each change of a node is known at once, and a node refuses no client that the rule has sent there.
The nodes of a daemon report the devices that the daemon has chosen, and no failures.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from ...cluster.node_choice import HAS_ROOM, rank
from ...core.base.errors import PlacementFailed
from ...core.cluster.cluster_placement import ClusterPlacement
from ...core.cluster.node_report import NodeReport, ReportedClient, ReportedDevice
from ...core.placement import PlacementRequest, PlacementSettings
from ..experiment import SERVERS
from ..workloads.workload import Participant


class NodeSelection(Protocol):
    """Rule that selects the node of a client."""

    def place(self, client: Participant, now: float) -> str:
        """Return the node of a client that arrives. Raises Refused."""

    def remove(self, client: Participant, now: float) -> None:
        """Remove a client that departs from its node."""


class ReportingNodes:
    """Nodes that report their devices and clients to the placement of the cluster daemon."""

    def __init__(self, devices: Mapping[str, int], memory: int, settings: PlacementSettings) -> None:
        """Start with the number of devices of each node, each with so many bytes. No node has reported yet."""
        self.cluster = ClusterPlacement(settings)
        self._devices = {
            node: tuple(ReportedDevice(f"{node}/{device}", "", memory) for device in range(count))
            for node, count in devices.items()
        }
        self._clients: dict[str, dict[str, ReportedClient]] = {node: {} for node in devices}

    def choose(self, client: str, request: PlacementRequest, tenant: str = "", now: float = 0.0) -> str:
        """Return the node that the placement chooses, and start the client there. Raises Refused."""
        chosen = self.cluster.choose(client, request, tenant, now=now)
        self._clients[chosen.node][client] = ReportedClient(client, chosen.devices, request, tenant)
        return chosen.node

    def end(self, node: str, client: str) -> None:
        """End a client of the node."""
        del self._clients[node][client]

    def report(self, node: str, now: float = 0.0) -> None:
        """Send a report of the node."""
        self.cluster.observe(node, NodeReport(self._devices[node], tuple(self._clients[node].values())), now)


class SelectionByDaemon:
    """Selection by the cluster daemon, with a strategy as of `c.GpuShareCluster.placement`."""

    def __init__(self, devices: Mapping[str, int], memory: int, strategy: str) -> None:
        self._nodes = ReportingNodes(devices, memory, PlacementSettings(strategy=strategy))
        self._places: dict[str, str] = {}
        for node in devices:
            self._nodes.report(node)

    def place(self, client: Participant, now: float) -> str:
        request = PlacementRequest(gpus=client.gpus).with_quota(client.quota)
        node = self._places[client.id] = self._nodes.choose(client.id, request, now=now)
        self._nodes.report(node, now)
        return node

    def remove(self, client: Participant, now: float) -> None:
        if node := self._places.pop(client.id, ""):
            self._nodes.end(node, client.id)
            self._nodes.report(node, now)


class SelectionByServers:
    """Selection by the servers without a daemon. Jobs count as clients at work, and notebooks as idle."""

    def __init__(self, devices: Mapping[str, int], memory: int) -> None:
        device = {"failed": None, "memory_total": memory}
        self._snapshots: dict[str, Any] = {
            node: {"devices": [device] * n, "clients": []} for node, n in devices.items()
        }
        self._ranks: dict[int, dict[str, tuple[float, ...]]] = {}  # by number of devices, and by node
        self._places: dict[str, tuple[str, dict[str, Any]]] = {}

    def place(self, client: Participant, now: float) -> str:
        if client.gpus not in self._ranks:
            self._ranks[client.gpus] = {node: rank(one, client.gpus) for node, one in self._snapshots.items()}
        ranks = self._ranks[client.gpus]
        node = min(ranks, key=ranks.__getitem__)
        if ranks[node][0] != HAS_ROOM:
            raise PlacementFailed(f"no node has {client.gpus} devices")
        entry = {"phase": "running" if client.kind == "job" else "idle", "allocated": client.memory}
        self._places[client.id] = node, entry
        self._snapshots[node]["clients"].append(entry)
        self._update(node)
        return node

    def remove(self, client: Participant, now: float) -> None:
        if client.id in self._places:
            node, entry = self._places.pop(client.id)
            self._snapshots[node]["clients"].remove(entry)
            self._update(node)

    def _update(self, node: str) -> None:
        for gpus, ranks in self._ranks.items():
            ranks[node] = rank(self._snapshots[node], gpus)


def node_selection(rule: str, devices: Mapping[str, int], memory: int) -> NodeSelection:
    """Return the selection by SERVERS, or by a daemon with a strategy, for the numbers of devices of nodes."""
    return SelectionByServers(devices, memory) if rule == SERVERS else SelectionByDaemon(devices, memory, rule)
