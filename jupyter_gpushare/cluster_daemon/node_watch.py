"""Watch over the nodes: the snapshots of their coordinators, as reports for the placement."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..cluster.node_choice import IDLE, SnapshotRequests
from ..cluster.settings import GpuShareCluster
from ..core.base.errors import Refused
from ..core.cluster.cluster_placement import ClusterPlacement
from ..core.cluster.node_report import NO_COORDINATOR, NodeReport, ReportedClient, ReportedDevice
from ..core.placement import LABEL_NAMES, PlacementRequest

_MIN_PAUSE_SECONDS = 1.0  # between two requests to a node
_REQUEST_SECONDS = 0.01  # of this process for a snapshot, so that many nodes are asked less often

log = logging.getLogger(__name__)


def node_report(snapshot: Mapping[str, Any], tenant_of: Callable[[str], str]) -> NodeReport:
    """Return the report of a snapshot. `tenant_of` returns the tenant of a user."""
    devices = (
        ReportedDevice(one["uuid"], one["name"], one["memory_total"], one["failed"] or "", one["parent"] or "")
        for one in snapshot["devices"]
    )
    return NodeReport(tuple(devices), tuple(_client(one, tenant_of) for one in snapshot["clients"]))


def _client(fields: Mapping[str, Any], tenant_of: Callable[[str], str]) -> ReportedClient:
    quota, labels = fields["quota"], fields["labels"]
    request = PlacementRequest(
        gpus=max(1, len(fields["devices"])),
        share=quota["share"],
        memory=quota["memory"],
        service=quota["service"],
        **{name: labels[name] for name in LABEL_NAMES if name in labels},
    )
    return ReportedClient(fields["id"], tuple(fields["devices"]), request, tenant_of(fields["user"]))


class NodeWatch:
    """Tasks that request the snapshot of each node again and again."""

    def __init__(self, placement: ClusterPlacement, settings: GpuShareCluster, tenant_of: Callable[[str], str]) -> None:
        self._placement = placement
        self._settings = settings
        self._tenant_of = tenant_of
        self._requests = SnapshotRequests()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for node in self._settings.all_nodes:
            self._placement.add_node(node)
            self._tasks.append(asyncio.create_task(self._follow(node)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, node: str) -> None:
        pause = max(_MIN_PAUSE_SECONDS, _REQUEST_SECONDS * len(self._settings.all_nodes))
        while True:
            try:
                await self._request(node)
            except Exception:  # a fault of one request, such as a lack of descriptors, must not end the watch
                log.exception("cannot request the state of %s", node)
                self._lose(node, "the daemon cannot request its state: see the daemon's log")
            await asyncio.sleep(pause)

    async def _request(self, node: str) -> None:
        asked_at = time.monotonic()
        snapshot = (await self._requests.all([node], self._settings))[node]
        if snapshot is None:
            self._lose(node, "the node does not answer")
            return
        try:
            report = NO_COORDINATOR if snapshot is IDLE else node_report(snapshot, self._tenant_of)
            self._placement.observe(node, report, asked_at)
        except (LookupError, TypeError, ValueError, Refused) as error:  # of another version of the package
            self._lose(node, f"the node has sent a snapshot without a meaning here: {error!r}")

    def _lose(self, node: str, failure: str) -> None:
        if self._placement.nodes[node].failure != failure:
            log.warning("placing no clients on %s: %s", node, failure)
        self._placement.lose(node, failure)
