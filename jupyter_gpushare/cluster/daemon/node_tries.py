"""Nodes that one start tries: those that the cluster daemon chooses one after another, else in the server's own order.

The daemon is an adviser: without an answer of it, a start goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from ...wire.client import AsyncClient, CoordinatorError, Unreachable
from .messages import ChooseNode

_ANSWER_SECONDS = 1.0

log = logging.getLogger(__name__)


class NodeTries:
    """Nodes of one start, the best one first. Each node that is asked for after the first one follows a refusal.

    `first` is the node that comes before all others, or "". `own_order` returns the candidates in the server's order,
    without those that get no try. The caller adds to `unshared` the nodes that would start the kernel without sharing;
    these come last, unless a node `has_no_room` at present. `message` is the daemon's sentence why no node has room.
    """

    def __init__(
        self,
        socket: str,
        wanted: ChooseNode,
        first: str,
        own_order: Callable[[], Awaitable[Sequence[str]]],
    ) -> None:
        self.has_no_room = False
        self.unshared: list[str] = []
        self.message = ""
        self._socket = socket
        self._wanted = wanted
        self._first = first
        self._own_order = own_order
        self._tried: list[str] = []
        self._rest: list[str] | None = None  # of the server's own order; None: not yet needed
        self._retried = 0  # number of nodes that have been tried again without sharing

    async def next(self) -> str | None:
        """Return the node to try now, or None after the last one."""
        if self._first and not self._tried:
            return self._try(self._first)
        if self._rest is None:
            if (node := await self._choose()) is not None:
                return self._try(node)
            self._rest = [] if self.message else [one for one in await self._own_order() if one not in self._tried]
            if not {*self._wanted.nodes} <= {*self._tried, *self._rest}:
                self.has_no_room = True  # a node that does not answer may have room later
        if self._rest:
            return self._try(self._rest.pop(0))
        if self._retried < len(self.unshared) and not self.has_no_room:
            self._retried += 1
            return self.unshared[self._retried - 1]
        return None

    def _try(self, node: str) -> str:
        self._tried.append(node)
        return node

    async def _choose(self) -> str | None:
        """Return the node that the daemon chooses, or None if the daemon does not choose any further node."""
        if not self._socket or len(self._wanted.nodes) <= max(1, len(self._tried)):
            return None
        try:
            answer = await self._ask(msgspec.structs.replace(self._wanted, refused=tuple(self._tried)))
        except Unreachable:
            log.warning("choosing a node without the cluster daemon: no daemon has answered at %s", self._socket)
            return None
        except CoordinatorError as error:
            if error.reason == "no_room":
                self.has_no_room, self.message = True, str(error)
            else:
                log.warning("choosing a node without the cluster daemon: %s", error)
            return None
        node = str(answer["node"])
        return node if node in self._wanted.nodes and node not in self._tried else None

    async def _ask(self, request: ChooseNode) -> dict[str, object]:
        connection = await AsyncClient.connect(self._socket, _ANSWER_SECONDS)
        try:
            found: dict[str, object] = await connection.request(request, _ANSWER_SECONDS)
            return found
        finally:
            await connection.close()
