"""Snapshots of the coordinators on the nodes that have kernels of this server, and requests to these coordinators.

Only connections that the kernels' provisioners have opened are used, so a page starts nothing on a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future
from time import monotonic
from typing import Any

import msgspec

from ..wire import messages
from ..wire.client import CoordinatorError
from .kernel_services.kernels import Kernels
from .snapshot_times import counted_on, without_clock_fields

_WATCHED_SECONDS = 1.0  # between two requests, while a page shows the nodes
_UNWATCHED_INTERVALS = 15  # so many times as long without a page
_ANSWER_SECONDS = 5.0
_REFRESH_SECONDS = 0.5  # for which a new page waits for new snapshots

_PARTS = {"devices", "clients", "viewer", "coordinator"}  # of a snapshot
_Status = dict[str, Any]


class NodeSnapshots:
    """Last snapshot of each node that has a kernel of this server.

    `starts` returns the starts that wait for a node. `is_watched` returns true while a page shows the nodes. `changed`
    is called after each change that pages show. `problem` is a message about this server, or "".
    """

    def __init__(
        self,
        kernels: Kernels,
        starts: Callable[[], list[_Status]],
        is_watched: Callable[[], bool],
        changed: Callable[[], None],
        log: logging.Logger,
        problem: str = "",
    ) -> None:
        self.by_node: dict[str, _Status] = {}
        self._received_at: dict[str, float] = {}  # by node, in seconds of `monotonic`
        self._messages: dict[str, str] = {}  # why a node has no snapshot
        self._kernels = kernels
        self._starts = starts
        self._is_watched = is_watched
        self._changed = changed
        self._log = log
        self._problem = problem
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._updates: set[asyncio.Task[None]] = set()

    def follow(self) -> None:
        """Follow the nodes of all kernels of this server, each until its last kernel has ended."""
        for node in self._kernels.nodes() - self._tasks.keys():
            task = asyncio.get_running_loop().create_task(self._follow(node), name=f"gpushare-node-{node}")
            task.add_done_callback(self._report_bug)
            self._tasks[node] = task

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._updates]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Get new snapshots, because the times in the last ones may be old, from the nodes that answer soon."""
        updates = {asyncio.get_running_loop().create_task(self._update(node)) for node in self._tasks}
        for update in updates:
            self._updates.add(update)
            update.add_done_callback(self._updates.discard)
        if updates:
            await asyncio.wait(updates, timeout=_REFRESH_SECONDS)

    def snapshots(self, status: _Status | None) -> dict[str, _Status]:
        """Return the snapshots by node; the key "" has that of this host, if there is one.

        Of several names of one host the first one counts, and a node that is this host itself adds nothing.
        """
        by_run = {} if status is None else {_run_of(status, ""): ("", status)}
        for node, snapshot in sorted(self.by_node.items()):
            by_run.setdefault(_run_of(snapshot, node), (node, snapshot))
        return dict(by_run.values())

    def answers(self) -> dict[str, bool]:
        """Return whether each node of a kernel has answered last, without nodes that have had no time to answer."""
        known = [node for node in sorted(self._tasks) if node in self.by_node or node in self._messages]
        return {node: node in self.by_node for node in known}

    def merged(self, status: _Status | None) -> _Status | None:
        """Return the snapshot of this host with the devices and clients of all nodes, which have the key `node`.

        The coordinator's problems also have that of this server.
        Without a coordinator on this host the settings are None. Without any node and any waiting start the result is
        None then.
        """
        starts = self._starts()
        if status is None and not (self.by_node or self._messages or starts):
            return None
        viewers = [snapshot["viewer"] for snapshot in self.by_node.values()]
        viewer = viewers[0] if viewers else {"user": "", "admin": False}
        base = {"devices": [], "clients": [], "config": None, "viewer": viewer} if status is None else status
        by_node = {node: self._counted_on(node, snapshot) for node, snapshot in self.snapshots(status).items()}
        merged = {
            part: [{**one, "node": node} for node, snapshot in by_node.items() for one in snapshot[part]]
            for part in ("devices", "clients")
        }
        nodes = [{"name": node, "message": self._message(node)} for node in sorted(self._tasks)]
        if status is not None and self._problem:
            problems = [*status["coordinator"].get("problems", ()), self._problem]
            base = {**status, "coordinator": {**status["coordinator"], "problems": problems}}
        return {**base, **merged, "nodes": nodes, "starts": starts}

    def _counted_on(self, node: str, snapshot: _Status) -> _Status:
        at = self._received_at.get(node)
        return snapshot if at is None else counted_on(snapshot, monotonic() - at)

    def _message(self, node: str) -> str:
        return "" if node in self.by_node else self._messages.get(node, f"The node {node} has not answered yet.")

    def node_of(self, client: str) -> str:
        """Return the node of a client; "" for a client of this host, and for an unknown client."""
        for node, status in self.by_node.items():
            if any(one["id"] == client for one in status["clients"]):
                return node
        return self._kernels.node_of(client)

    async def request(self, node: str, message: msgspec.Struct) -> Any:
        """Send a request to the coordinator of a node, and return the result. Raise CoordinatorError."""
        from ..cluster.channel.messages import NO_COORDINATOR, Coordinator, NodeError
        from ..cluster.node_connection import CONNECTIONS

        if node not in self._kernels.nodes():
            raise CoordinatorError(f"This server has no kernel on a node {node!r}.", "unknown_node")
        found = [connection for connection in CONNECTIONS.present() if connection.node == node]
        if not found:
            raise CoordinatorError(f"The node {node} does not answer.", "unreachable")
        answer: Future[Any] = found[0].request(Coordinator(message=msgspec.to_builtins(message)))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), _ANSWER_SECONDS)
        except asyncio.TimeoutError:
            text = f"The node {node} has not answered within {_ANSWER_SECONDS:g} s."
            raise CoordinatorError(text, "unreachable") from None
        except NodeError as error:
            is_lost = error.reason in ("agent_ended", "engine_failed", NO_COORDINATOR)
            raise CoordinatorError(str(error), "unreachable" if is_lost else error.reason) from None

    async def _follow(self, node: str) -> None:
        """Update the snapshot of a node until the node has no kernel of this server."""
        while node in self._kernels.nodes():
            await self._update(node)
            for _ in range(_UNWATCHED_INTERVALS):
                await asyncio.sleep(_WATCHED_SECONDS)
                if self._is_watched():
                    break
        del self._tasks[node]
        self._save(node, None, "")

    async def _update(self, node: str) -> None:
        """Get a new snapshot, unless the node's last kernel ends meanwhile."""
        status, message = None, f"The coordinator of the node {node} has another version, and sends no snapshot."
        try:
            answer = await self.request(node, messages.Status())
            if isinstance(answer, dict) and answer.keys() >= _PARTS:
                status, message = answer, ""
        except CoordinatorError as error:
            message = str(error)
        if node in self._tasks:
            self._save(node, status, message)

    def _save(self, node: str, status: _Status | None, message: str) -> None:
        before = self.by_node.pop(node, None), self._messages.pop(node, "")
        if status is not None:
            self.by_node[node] = status
            self._received_at[node] = monotonic()
        if message:
            self._messages[node] = message
        if without_clock_fields((status, message)) != without_clock_fields(before):
            self._changed()

    def _report_bug(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._log.error("failed to follow a node of GPU sharing", exc_info=error)


def _run_of(status: _Status, default: str) -> str:
    """Return the id of the coordinator's run, which an older coordinator does not report."""
    return str(status["coordinator"].get("run", default))
