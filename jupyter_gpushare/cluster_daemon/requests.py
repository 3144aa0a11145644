"""Answers to the requests of Jupyter servers, each of which is a line of a connection."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import msgspec

from .. import __version__
from ..cluster.daemon.messages import (
    ABOVE_CEILING,
    CEILING_REACHED,
    ChooseNode,
    ChosenNode,
    ClusterRequest,
    ClusterState,
    ClusterStatus,
    NodeState,
    ReleaseBooking,
)
from ..coordinator.config.quota_parsing import parse_request
from ..coordinator.config.tenant_lookup import TenantLookup
from ..coordinator.transport.connection import Connection, refuse, reply
from ..core.base.errors import AboveCeiling, CeilingReached, Refused
from ..core.base.quota import Quota
from ..core.cluster.cluster_placement import ClusterPlacement
from ..wire.messages import MAX_LINE

MAX_BOOKINGS = 16  # of one user at the same time, so that these do not fill the nodes

log = logging.getLogger(__name__)
_decoder = msgspec.json.Decoder(ClusterRequest)


class ClusterRequests:
    """Handler of all requests. Only the user of a booking may replace or end the booking."""

    def __init__(self, placement: ClusterPlacement, tenants: TenantLookup) -> None:
        self._placement = placement
        self._tenants = tenants
        self._users: dict[str, str] = {}  # of bookings, by client

    def on_connected(self, connection: Connection) -> None:
        """Do nothing, because a connection without a request has no state."""

    def on_closed(self, connection: Connection) -> None:
        """Do nothing: a booking stays, because the start may go on without the connection."""

    def is_unidentified(self, connection: Connection) -> bool:
        """Return true, because all connections are alike."""
        return True

    def on_line(self, connection: Connection, line: bytes) -> None:
        """Answer a line. An error in the line affects only its connection."""
        if len(line) > MAX_LINE:
            refuse(connection, 0, "too_long", f"a line is longer than {MAX_LINE} bytes")
            connection.drop()
            return
        try:
            request = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refuse(connection, 0, "malformed", f"not a request: {error}")
            return
        if connection.has_hung_up:
            return  # the server has given up, and has chosen a node itself
        try:
            reply(connection, request.id, self._result(connection.user, request))
        except PermissionError as error:
            refuse(connection, request.id, "forbidden", str(error))
        except AboveCeiling as error:
            refuse(connection, request.id, ABOVE_CEILING, str(error))
        except CeilingReached as error:
            refuse(connection, request.id, CEILING_REACHED, str(error))
        except Refused as error:
            refuse(connection, request.id, error.reason, str(error))
        except Exception:
            log.exception("bug: %s sent %.200r", connection, line)
            refuse(connection, request.id, "internal", "the cluster daemon has a bug: see its log")

    def _result(self, user: str, request: ClusterRequest) -> Any:
        match request:
            case ChooseNode():
                return self._choose(user, request)
            case ReleaseBooking(client=client):
                self._check_user(user, client)
                return self._placement.release(client)
            case ClusterStatus():
                return self._status()

    def _choose(self, user: str, wanted: ChooseNode) -> ChosenNode:
        self._check_user(user, wanted.client)
        if sum(owner == user for client, owner in self._users.items() if client != wanted.client) >= MAX_BOOKINGS:
            raise Refused(f"the user has {MAX_BOOKINGS} bookings already: allowed are {MAX_BOOKINGS}")
        quota, request = parse_request(wanted.quota, Quota(), wanted.gpus)
        choice = self._placement.choose(
            wanted.client,
            request,
            self._tenants.tenant_of(user),
            quota,
            now=time.monotonic(),
            nodes=frozenset(wanted.nodes) or None,
            refused=frozenset(wanted.refused),
        )
        self._users[wanted.client] = user
        return ChosenNode(choice.node, choice.devices)

    def _check_user(self, user: str, client: str) -> None:
        """Raise PermissionError for the booking of another user. Users of bookings that have ended are forgotten."""
        self._placement.expire(time.monotonic())
        self._users = {one: owner for one, owner in self._users.items() if one in self._placement.bookings}
        if self._users.get(client, user) != user:
            raise PermissionError(f"the booking of {client} is that of another user")

    def _status(self) -> ClusterState:
        self._placement.expire(time.monotonic())
        bookings = Counter(booking.node for booking in self._placement.bookings.values())
        nodes = [
            NodeState(name, node.failure, len(node.devices), len(node.clients), bookings[name])
            for name, node in self._placement.nodes.items()
        ]
        return ClusterState(tuple(nodes), dict(self._placement.missing_cells), __version__)
