"""Order in which a server tries nodes for a kernel, by the snapshots of the nodes' coordinators.

The coordinator of a node still places the kernel on its devices, and may refuse it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .channel.messages import NO_COORDINATOR, Coordinator, NodeError
from .node_connection import CONNECTIONS
from .settings import GpuShareCluster

Snapshot = Mapping[str, Any]
IDLE: Snapshot = {"devices": [], "clients": []}  # of a node without a coordinator, which ends with the last client
HAS_ROOM = 0  # first class of nodes in the order
_ACTIVE_PHASES = {"waiting", "running", "draining", "overrun"}
_ANSWER_SECONDS = 20.0  # for a busy node, whose agent or coordinator may have to start first
_SILENT_NODE_SECONDS = 5.0  # for a node that has not answered the last time
_SILENT_NODE_PAUSE_SECONDS = 10.0  # before the next request to such a node, whose engine may have to start again


class SnapshotRequests:
    """Requests for the snapshots of nodes. A node that does not answer delays only one start for a long time."""

    def __init__(self) -> None:
        self._silent: dict[str, float] = {}  # by node: when it was found not to answer

    async def all(self, nodes: Sequence[str], settings: GpuShareCluster) -> dict[str, Snapshot | None]:
        """Return the snapshots of the nodes. None: the node has not answered in time."""
        found = await asyncio.gather(*(self._one(node, settings) for node in nodes))
        return dict(zip(nodes, found, strict=True))

    async def _one(self, node: str, settings: GpuShareCluster) -> Snapshot | None:
        if time.monotonic() < self._silent.get(node, -math.inf) + _SILENT_NODE_PAUSE_SECONDS:
            return None
        snapshot: Snapshot | None = None
        try:
            connection = await asyncio.to_thread(CONNECTIONS.connection, node, settings.command(node))
            answer = asyncio.wrap_future(connection.request(Coordinator(message={"type": "status"})))
            snapshot = await asyncio.wait_for(answer, _SILENT_NODE_SECONDS if node in self._silent else _ANSWER_SECONDS)
        except NodeError as error:
            snapshot = IDLE if error.reason == NO_COORDINATOR else None
        except asyncio.TimeoutError:
            pass
        if snapshot is None:
            self._silent[node] = time.monotonic()
        else:
            self._silent.pop(node, None)
        return snapshot


class StartsInProgress:
    """Number of kernels that a server is starting on each node, which no snapshot has yet."""

    def __init__(self) -> None:
        self.by_node: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def on(self, node: str) -> Iterator[None]:
        """Count a start on this node for the time of the context."""
        self._add(node, 1)
        try:
            yield
        finally:
            self._add(node, -1)

    def _add(self, node: str, number: int) -> None:
        with self._lock:
            self.by_node[node] += number


def order_nodes(
    snapshots: Mapping[str, Snapshot | None], gpus: int = 1, starts: Mapping[str, int] = MappingProxyType({})
) -> Sequence[str]:
    """Return the nodes, the best one first. None: the node has not answered in time.

    `starts` is the number of kernels that begin to start on each node, which count as active clients.
    First come the nodes with enough usable devices, and the nodes without a coordinator, whose devices are unknown so
    far. Nodes without an answer come last. Among the first ones, the node comes first whose devices have the fewest
    active clients each, then the fewest clients, then the most memory that no client has allocated. Nodes that are
    equal keep their order.
    """
    return sorted(snapshots, key=lambda node: rank(snapshots[node], gpus, starts.get(node, 0)))


def rank(snapshot: Snapshot | None, gpus: int, starts: int = 0) -> tuple[int, float, float, float]:
    """Return the place of a node in the order, beginning with its class."""
    if snapshot is None:
        return 2, 0.0, 0.0, 0.0
    if snapshot is IDLE:
        return HAS_ROOM, float(starts), float(starts), -float("inf")
    devices = [device for device in snapshot["devices"] if device["failed"] is None]
    if len(devices) < gpus:
        return 1, 0.0, 0.0, 0.0
    active = starts + sum(client["phase"] in _ACTIVE_PHASES for client in snapshot["clients"])
    free = sum(device["memory_total"] for device in devices) - sum(one["allocated"] for one in snapshot["clients"])
    return HAS_ROOM, active / len(devices), (starts + len(snapshot["clients"])) / len(devices), -float(free)
