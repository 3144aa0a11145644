"""Reports of nodes: the devices and clients of a node's coordinator at some time."""

from __future__ import annotations

from dataclasses import dataclass

from ..placement import PlacementRequest


@dataclass(frozen=True)
class ReportedDevice:
    """Device of a node. `failure`: why no new client may use the device; `parent`: the UUID of the GPU of a slice."""

    uuid: str
    name: str
    memory: int
    failure: str = ""
    parent: str = ""


@dataclass(frozen=True)
class ReportedClient:
    """Client that the node's coordinator has admitted, with the UUIDs of its devices. `tenant`: that of the cluster."""

    id: str
    devices: tuple[str, ...]
    request: PlacementRequest
    tenant: str = ""


@dataclass(frozen=True)
class NodeReport:
    """State of one node."""

    devices: tuple[ReportedDevice, ...] = ()
    clients: tuple[ReportedClient, ...] = ()
    has_coordinator: bool = True


NO_COORDINATOR = NodeReport(has_coordinator=False)  # the devices are unknown, and no clients are there
