"""Requests to the cluster daemon, in lines as on the socket of a coordinator. Reply or Error answers each of them."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ...wire.messages import Identity, Request, Text


class ChooseNode(Request, tag="choose_node", frozen=True, kw_only=True):
    """Request to choose a node for the start of a client, and to book it there.

    `nodes`: the nodes that the server may use; none: all of the daemon's. `refused`: the nodes that have refused the
    client in this start. An earlier booking of the client ends, also with a refusal of the request.
    Result: `{"node", "devices": [UUID]}`. The node still decides about the client and its devices.
    The reason of an error is `no_room` if waiting may help, and `no_node` if no such node has answered the daemon.
    """

    client: Identity
    quota: Text = ""
    gpus: Annotated[int, msgspec.Meta(ge=1, le=64)] = 1
    nodes: tuple[Text, ...] = ()
    refused: tuple[Text, ...] = ()


class ClusterStatus(Request, tag="cluster_status", frozen=True, kw_only=True):
    """Request for the state of the daemon.

    Result: `{"nodes": [{"name", "message": why it gets no client, or "", "devices", "clients", "bookings": numbers}],
    "missing_cells": {tenant: number of guaranteed cells for which there is no node}}`.
    """


ClusterRequest = ChooseNode | ClusterStatus
