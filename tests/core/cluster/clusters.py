"""Clusters of nodes, on which tests place clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jupyter_gpushare.core.cluster.cluster_placement import Choice, ClusterPlacement
from jupyter_gpushare.core.cluster.node_report import NodeReport, ReportedClient, ReportedDevice
from jupyter_gpushare.core.placement import PlacementRequest, PlacementSettings, Tenant

GIB = 1 << 30
MEMORY = 80 * GIB


def report(devices: int, *clients: ReportedClient, failed: Iterable[int] = ()) -> NodeReport:
    """Return the report of a node with the devices d0, d1 and so on."""
    made = (ReportedDevice(f"d{n}", "A100", MEMORY, "lost" if n in failed else "") for n in range(devices))
    return NodeReport(tuple(made), clients)


def reported(client: str, *devices: str, tenant: str = "", **request: Any) -> ReportedClient:
    return ReportedClient(client, devices, PlacementRequest(gpus=len(devices), **request), tenant)


def make_cluster(
    nodes: dict[str, int], strategy: str = "spread", ceilings: Iterable[Tenant] = (), **cells: dict[str, int]
) -> ClusterPlacement:
    """Return a cluster whose nodes have reported so many devices each, with the cells of tenants."""
    tenants = (*ceilings, *(Tenant(name, cells=wanted) for name, wanted in cells.items()))
    cluster = ClusterPlacement(PlacementSettings(strategy=strategy, tenants=tenants), booking_seconds=60.0)
    for node, devices in nodes.items():
        cluster.observe(node, report(devices), asked_at=0.0)
    return cluster


def choose(cluster: ClusterPlacement, client: str, tenant: str = "", now: float = 0.0, **options: Any) -> Choice:
    """Choose a node; `options` are those of `choose`, and fields of the request."""
    known = {name: options.pop(name) for name in ("nodes", "refused", "quota") if name in options}
    return cluster.choose(client, PlacementRequest(**options), tenant, now=now, **known)
