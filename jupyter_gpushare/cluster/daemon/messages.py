"""Requests to the cluster daemon, in lines as on the socket of a coordinator. Reply or Error answers each of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...wire.messages import Identity, Request, Text

ABOVE_CEILING = "above_ceiling"  # reason of the error for a request that its tenant may never make
CEILING_REACHED = "ceiling_reached"  # the same, if other clients of the tenant have to end first


class ChooseNode(Request, tag="choose_node", frozen=True, kw_only=True):
    """Request to choose a node for the start of a client, and to book it there.

    `nodes`: the nodes that the server may use; none: all of the daemon's. `refused`: the nodes that have refused the
    client in this start. An earlier booking of the client ends, also if the placement refuses the request.
    Result: ChosenNode. The node still decides about the client and its devices.
    The reason of an error is `no_room` if waiting may help, and `no_node` if no such node has answered the daemon. Both
    concern the nodes that answer the daemon; `above_ceiling` and `ceiling_reached` concern all nodes.
    """

    client: Identity
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    nodes: tuple[Text, ...] = ()
    refused: tuple[Text, ...] = ()


class ChosenNode(msgspec.Struct, frozen=True):
    """Node for a client, with the UUIDs of the devices that are booked there, if these are known."""

    node: str
    devices: tuple[str, ...] = ()


class ReleaseBooking(Request, tag="release_booking", frozen=True, kw_only=True):
    """Request to end the booking of a client that does not come. Result: whether there was one."""

    client: Identity


class NodeState(msgspec.Struct, frozen=True):
    """Node as the daemon knows it. `message`: why the node gets no client, or ""."""

    name: str
    message: str
    devices: int
    clients: int
    bookings: int


class ClusterState(msgspec.Struct, frozen=True):
    """State of the daemon, of this `version` of the package.

    `missing_cells`: by tenant, the number of guaranteed cells for which there is no node.
    """

    nodes: tuple[NodeState, ...]
    missing_cells: dict[str, int]
    version: str = ""


class ClusterStatus(Request, tag="cluster_status", frozen=True, kw_only=True):
    """Request for the state of the daemon. Result: ClusterState."""


ClusterRequest = ChooseNode | ReleaseBooking | ClusterStatus
