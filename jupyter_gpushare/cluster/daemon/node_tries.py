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
from ..channel.messages import UNREACHABLE, NodeError
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
_Result = TypeVar("_Result")


class NodeTries:
    """Nodes of one start, the best one first.

    `first` is the node that comes before all others, or "". `own_order` returns the candidates in the server's order,
    without those that get no try. `level` is that of the records about a daemon without an answer.
    """

    def __init__(
        self,
        socket: str,
        wanted: ChooseNode,
        first: str,
        own_order: Callable[[], Awaitable[Sequence[str]]],
        level: int = logging.WARNING,
    ) -> None:
        self._socket = socket
        self._wanted = wanted
        self._first = first
        self._own_order = own_order
        self._level = level
        self._has_no_room = False  # some node, at present
        self._unshared: list[str] = []  # nodes that would start the kernel without sharing, and that come last
        self._message = ""  # the daemon's sentence why no node has room, or why ceilings do not admit the client
        self._tried: list[str] = []
        self._rest: list[str] | None = None  # of the server's own order; None: not yet needed
        self._settled: set[str] = set()  # nodes that get no try, because the daemon knows that they have no room
        self._asked_at = -math.inf  # time of the last request for a node, which may be booked
        self._retried = 0  # number of nodes that have been tried again without sharing

    async def start(self, attempt: Callable[[str, bool, str], Awaitable[_Result]]) -> _Result:
        """Return the result of `attempt` on the first node that takes the kernel.

        `attempt` gets the node, whether the kernel must share a GPU there, and the fault of the first node that has not
        taken the kernel, or "". `attempt` raises NodeError if the node does not take the kernel. Raises NodeError:
        "no_room" if waiting may help, "timeout" if no node has answered, "engine_failed" if the engine has failed on
        each node, else "no_node". The only node raises its own error.
        """
        try:
            result = await self._start(attempt)
        except BaseException:
            await self.release()
            raise
        if self._retried:
            await self.release()
        return result

    async def release(self) -> None:
        """End the booking of a client that does not come to its node, or that has ended soon."""
        if time.monotonic() > self._asked_at + _REPORT_SECONDS:
            return
        self._asked_at = -math.inf
        with contextlib.suppress(CoordinatorError, msgspec.ValidationError):
            await self._ask(ReleaseBooking(client=self._wanted.client), bool)

    async def _start(self, attempt: Callable[[str, bool, str], Awaitable[_Result]]) -> _Result:
        failures: list[tuple[str, NodeError]] = []
        while (node := await self._next()) is not None:
            must_share = len(self._wanted.nodes) > 1 and not self._retried
            try:
                return await attempt(node, must_share, ": ".join(map(str, failures[0])) if failures else "")
            except NodeError as error:
                if must_share and error.reason == "unshared":
                    self._unshared.append(node)
                self._has_no_room |= error.reason == "no_room"
                failures.append((node, error))
        if len(failures) == len(self._wanted.nodes) == 1:
            raise failures[0][1]
        reasons = "; ".join([*(f"{node}: {error}" for node, error in failures), *filter(None, [self._message])])
        if self._has_no_room:
            raise NodeError(f"no node has room for the kernel: {reasons}", "no_room")
        found = {error.reason for _, error in failures}
        is_passing = not self._message and found <= {"timeout", *UNREACHABLE}
        reason = "engine_failed" if found == {"engine_failed"} else "timeout"
        raise NodeError(f"no node has started the kernel: {reasons}", reason if is_passing else "no_node")

    async def _next(self) -> str | None:
        """Return the node to try now, or None after the last one."""
        if self._first and not self._tried:
            return self._try(self._first)
        if self._rest is None:
            if (node := await self._choose()) is not None:
                return self._try(node)
            self._rest = await self._nodes_left()
            if not {*self._wanted.nodes} <= {*self._tried, *self._settled, *self._rest}:
                self._has_no_room = True  # a node that does not answer may have room later
        if self._rest:
            return self._try(self._rest.pop(0))
        if self._retried < len(self._unshared) and not self._has_no_room:
            self._retried += 1
            return self._unshared[self._retried - 1]
        return None

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
            self._log("choosing a node without the cluster daemon: no daemon has answered at %s", self._socket)
        except (CoordinatorError, msgspec.ValidationError) as error:
            reason = error.reason if isinstance(error, CoordinatorError) else ""
            if reason in ("no_room", CEILING_REACHED, ABOVE_CEILING):
                self._message = str(error)
                self._has_no_room = reason != ABOVE_CEILING
                await self._settle(reason == "no_room")
            else:
                self._log("choosing a node without the cluster daemon: %s", error)
        return None

    async def _settle(self, has_no_room: bool) -> None:
        """Try no node for which the daemon's refusal counts: all that answer it, or all for a ceiling."""
        if not has_no_room:
            self._settled, self._unshared = {*self._wanted.nodes}, []
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
