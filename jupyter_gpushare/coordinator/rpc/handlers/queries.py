"""Queries: snapshots, subscriptions, history, waits, inspections of processes, and usage."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from typing import Any

from ....core.base.errors import UnknownProcess
from ....wire import messages
from ...engine.state import CoordinatorState
from ...monitoring.process_inspection import ProcessInspections
from ...transport.connection import Connection, refuse, reply
from ...transport.rate_limits import LimitExceeded
from ...views import wait_status
from ...views.subscriptions import SnapshotSubscriptions
from . import DEFERRED_REPLY, Handler, client_owned_by

_ANSWER_TIMEOUT_SECONDS = 4.0  # for a query that reads the disk
_MAX_PENDING_USAGE_QUERIES = 4  # of one user at the same time


class QueryHandlers:
    """Handlers of queries. `query_history` and `query_usage` are those of `Coordinator`."""

    def __init__(
        self,
        state: CoordinatorState,
        subscriptions: SnapshotSubscriptions,
        inspections: ProcessInspections,
        query_history: Callable[[int, str], dict[str, Any]],
        query_usage: Callable[[float, str, Callable[[dict[str, Any]], None]], None],
    ) -> None:
        self._state = state
        self._subscriptions = subscriptions
        self._inspections = inspections
        self._query_usage = query_usage
        self._pending_usage_queries: Counter[str] = Counter()  # by user
        self.handlers: dict[type, Handler] = {
            messages.Status: self._status,
            messages.Subscribe: self._subscribe,
            messages.History: lambda _, request: query_history(request.after, request.client),
            messages.WaitStatus: self._wait_status,
            messages.Inspect: self._inspect,
            messages.Usage: self._usage,
        }

    def _status(self, connection: Connection, request: messages.Status) -> Any:
        self._subscriptions.request(connection, lambda views: reply(connection, request.id, views.for_user(connection)))
        return DEFERRED_REPLY

    def _subscribe(self, connection: Connection, request: messages.Subscribe) -> Any:
        self._subscriptions.subscribe(
            connection, lambda views: reply(connection, request.id, views.for_user(connection))
        )
        return DEFERRED_REPLY

    def _wait_status(self, connection: Connection, request: messages.WaitStatus) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        return wait_status.describe_wait(self._state.scheduler, runtime.client_id, connection.user, self._state.now)

    def _inspect(self, connection: Connection, request: messages.Inspect) -> Any:
        handle = next(
            (handle for handle in self._state.process_handles.values() if handle.connection.pid == request.pid),
            None,
        )
        runtime = self._state.runtime_of(handle) if handle else None
        if handle is None or runtime is None:
            raise UnknownProcess(f"process {request.pid} does not belong to a client of this coordinator")
        client_owned_by(self._state, connection, runtime.client_id)
        client = self._state.scheduler.clients[runtime.client_id]
        result = {
            "pid": request.pid,
            "client": runtime.client_id,
            "label": client.label if client.user == connection.user else "",
            "coordinator": {"pid": os.getpid(), "socket": self._state.socket_path},
            "page": handle.page.values(),
        }

        def answer(details: dict[str, Any] | None) -> None:
            reply(connection, request.id, {**result, "details": details})

        self._inspections.request(handle, answer)
        return DEFERRED_REPLY

    def _usage(self, connection: Connection, request: messages.Usage) -> Any:
        if self._pending_usage_queries[connection.user] >= _MAX_PENDING_USAGE_QUERIES:
            raise LimitExceeded(
                f"this user has {_MAX_PENDING_USAGE_QUERIES} usage queries without a reply, the most a user may have: "
                "wait for the replies"
            )
        self._pending_usage_queries[connection.user] += 1
        user = "" if connection.admin else connection.user
        loop = asyncio.get_running_loop()
        message = "the disk of the state store does not answer: try again later"
        timeout = loop.call_later(_ANSWER_TIMEOUT_SECONDS, refuse, connection, request.id, "unavailable", message)

        def answer(result: dict[str, Any]) -> None:
            self._pending_usage_queries[connection.user] -= 1
            if loop.time() < timeout.when():
                timeout.cancel()
                reply(connection, request.id, result)

        self._query_usage(request.since, user, answer)
        return DEFERRED_REPLY
