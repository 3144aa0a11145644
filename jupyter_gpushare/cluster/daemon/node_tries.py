"""Nodes that one start tries: those that the cluster daemon chooses one after another, else in the server's own order.

The daemon is an adviser: without an answer of it, a start goes on. Only the ceilings of tenants end a start, because
they concern all nodes alike.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from ...wire.client import AsyncClient, CoordinatorError, Unreachable
from ...wire.messages import Request
from .messages import (
    ABOVE_CEILING,
    CEILING_REACHED,
    ChooseNode,
    ChosenNode,
    ClusterState,
    ClusterStatus,
    ReleaseBooking,
)

_ANSWER_SECONDS = 1.0
_REPORT_SECONDS = 60.0  # after which the daemon knows the client of a start, or has forgotten the booking

log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")


class NodeTries:
    """Nodes of one start, the best one first. Each node that is asked for after the first one follows a refusal.

    `first` is the node that comes before all others, or "". `own_order` returns the candidates in the server's order,
    without those that get no try. The caller adds to `unshared` the nodes that would start the kernel without sharing;
    these come last, unless a node `has_no_room` at present. `message` is the daemon's sentence why no node has room, or
    why its tenant's ceilings do not admit the client. `level` is that of the records about a daemon without an answer.
    """

    def __init__(
        self,
        socket: str,
        wanted: ChooseNode,
        first: str,
        own_order: Callable[[], Awaitable[Sequence[str]]],
        level: int = logging.WARNING,
    ) -> None:
        self.has_no_room = False
        self.unshared: list[str] = []
        self.message = ""
        self._socket = socket
        self._wanted = wanted
        self._first = first
        self._own_order = own_order
        self._level = level
        self._tried: list[str] = []
        self._rest: list[str] | None = None  # of the server's own order; None: not yet needed
        self._settled: set[str] = set()  # nodes that get no try, because the daemon knows that they have no room
        self._asked_at = -math.inf  # time of the last request for a node, which may be booked
        self._retried = 0  # number of nodes that have been tried again without sharing

    async def next(self) -> str | None:
        """Return the node to try now, or None after the last one."""
        if self._first and not self._tried:
            return self._try(self._first)
        if self._rest is None:
            if (node := await self._choose()) is not None:
                return self._try(node)
            self._rest = await self._nodes_left()
            if not {*self._wanted.nodes} <= {*self._tried, *self._settled, *self._rest}:
                self.has_no_room = True  # a node that does not answer may have room later
        if self._rest:
            return self._try(self._rest.pop(0))
        if self._retried < len(self.unshared) and not self.has_no_room:
            self._retried += 1
            return self.unshared[self._retried - 1]
        return None

    async def release(self) -> None:
        """End the booking of a client that does not come to its node, or that has ended soon."""
        if time.monotonic() > self._asked_at + _REPORT_SECONDS:
            return
        self._asked_at = -math.inf
        with contextlib.suppress(CoordinatorError, msgspec.ValidationError):
            await self._ask(ReleaseBooking(client=self._wanted.client), bool)

    async def _nodes_left(self) -> list[str]:
        """Return the nodes to try after the daemon has chosen none, in the server's order."""
        done = {*self._tried, *self._settled}
        return [] if {*self._wanted.nodes} <= done else [one for one in await self._own_order() if one not in done]

    def _try(self, node: str) -> str:
        self._tried.append(node)
        return node

    async def _choose(self) -> str | None:
        """Return the node that the daemon chooses, or None if the daemon does not choose any further node."""
        if not self._socket or len(self._wanted.nodes) <= max(1, len(self._tried)):
            return None
        refused = tuple(self._tried)
        self._asked_at = time.monotonic()
        try:
            node = (await self._ask(msgspec.structs.replace(self._wanted, refused=refused), ChosenNode)).node
            return node if node in self._wanted.nodes and node not in self._tried else None
        except Unreachable:
            log.log(
                self._level, "choosing a node without the cluster daemon: no daemon has answered at %s", self._socket
            )
        except (CoordinatorError, msgspec.ValidationError) as error:
            reason = error.reason if isinstance(error, CoordinatorError) else ""
            if reason in ("no_room", CEILING_REACHED, ABOVE_CEILING):
                self.message = str(error)
                self.has_no_room = reason != ABOVE_CEILING
                await self._settle(reason == "no_room")
            else:
                self._log("choosing a node without the cluster daemon: %s", error)
        return None

    async def _settle(self, has_no_room: bool) -> None:
        """Try no node for which the daemon's refusal counts: all that answer it, or all for a ceiling."""
        if not has_no_room:
            self._settled, self.unshared = {*self._wanted.nodes}, []
            return
        try:
            state = await self._ask(ClusterStatus(), ClusterState)
            self._settled = {one.name for one in state.nodes if not one.message}
        except (CoordinatorError, msgspec.ValidationError) as error:
            self._log("trying all nodes without the cluster daemon: %s", error)

    async def _ask(self, request: Request, answer: type[_Answer]) -> _Answer:
        """Return the answer of the daemon. Raise CoordinatorError, and ValidationError for an unexpected answer."""
        connection = await AsyncClient.connect(self._socket, _ANSWER_SECONDS)
        try:
            return msgspec.convert(await connection.request(request, _ANSWER_SECONDS), answer)
        finally:
            await connection.close()

    def _log(self, text: str, value: object) -> None:
        log.log(self._level, text, value)
