"""Dispatcher of a coordinator, with all its handlers: it passes lines of connections to sessions or to handlers.

An error in a line is answered. The error ends no other connection than that of the line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...core.base.errors import IllegalEvent, Refused
from ...wire import messages
from ..engine.coordinator import Coordinator
from ..monitoring.process_inspection import ProcessInspections
from ..transport.connection import Connection, refuse, reply
from ..views.subscriptions import SnapshotSubscriptions
from .handlers import DEFERRED_REPLY, Handler
from .handlers.administration import AdminHandlers
from .handlers.clients import ClientHandlers
from .handlers.queries import QueryHandlers
from .handlers.quotas import QuotaHandlers
from .handlers.turns import TurnHandlers
from .protocol_sessions import ProtocolSessions

log = logging.getLogger(__name__)
_DOORBELL = messages.DOORBELL[:-1]
_decoder = msgspec.json.Decoder(messages.Incoming)


class RequestDispatcher:
    """Dispatcher of one coordinator; the acceptor calls `on_connected`, `on_line` and `on_closed`."""

    def __init__(
        self,
        handlers: Mapping[type, Handler],
        sessions: ProtocolSessions,
        subscriptions: SnapshotSubscriptions,
        withdraw_requests: Callable[[Connection], None],
        event_log: Callable[[], list[str]],
    ) -> None:
        """Construct a dispatcher.

        `withdraw_requests` receives each closed connection, whose requests without a reply are withdrawn.
        `event_log` returns the lines that are logged with the exception of a handler.
        """
        self._handlers = handlers
        self._sessions = sessions
        self._subscriptions = subscriptions
        self._withdraw_requests = withdraw_requests
        self._event_log = event_log

    def on_connected(self, connection: Connection) -> None:
        self._sessions.open(connection)

    def on_closed(self, connection: Connection) -> None:
        self._subscriptions.discard(connection)
        self._withdraw_requests(connection)
        self._sessions.close(connection)

    def is_unidentified(self, connection: Connection) -> bool:
        """Return whether the connection has sent neither a hello nor an attach."""
        return self._sessions.is_unidentified(connection)

    def on_line(self, connection: Connection, line: bytes) -> None:
        """Handle one line. An error in the line affects only its connection."""
        if len(line) > messages.MAX_LINE:
            refuse(connection, 0, "too_long", f"a line is longer than {messages.MAX_LINE} bytes")
            connection.drop()
            return
        try:
            message = None if line == _DOORBELL else _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            refuse(connection, _request_id(line), "malformed", f"not a message: {error}")
            return
        try:
            if message is None:
                self._sessions.on_doorbell(connection)
            elif not self._sessions.handle(connection, message):
                self._handle_request(connection, message)
        except IllegalEvent as error:
            log.warning("%s: dropping the connection: %s", connection, error)
            refuse(connection, getattr(message, "id", 0), error.reason, str(error))
            connection.drop()
        except Exception:
            log.exception(
                "bug: %s sent %.200r; event log:\n%s",
                connection,
                line,
                "\n".join(self._event_log()),
            )
            refuse(connection, getattr(message, "id", 0), "internal", "the coordinator has a bug: see its log")
            connection.drop()
        finally:
            for descriptor in connection.take_descriptors():
                os.close(descriptor)

    def _handle_request(self, connection: Connection, request: Any) -> None:
        if connection.has_hung_up:
            # The sender gave up while this process was stopped or busy, and has reported the request as failed.
            log.info("%s: skipping its %s, because it has hung up", connection, type(request).__name__.lower())
            return
        try:
            result = self._handlers[type(request)](connection, request)
        except PermissionError as error:
            refuse(connection, request.id, "forbidden", str(error))
        except Refused as error:
            refuse(connection, request.id, error.reason, str(error))
        else:
            if result is not DEFERRED_REPLY:
                reply(connection, request.id, result)


def make_dispatcher(coordinator: Coordinator, stop: Callable[[], None]) -> RequestDispatcher:
    """Make the dispatcher of a coordinator, with all handlers. `stop` ends the coordinator's process."""
    state, dispatch, audit = coordinator.state, coordinator.dispatcher.dispatch, coordinator.audit
    registry, page_sync, recovery = coordinator.registry, coordinator.page_sync, coordinator.restart_recovery
    inspections = ProcessInspections()
    clients = ClientHandlers(state, dispatch, registry, audit, coordinator.usage.count_orphan)
    quotas = QuotaHandlers(state, dispatch, recovery, audit)
    turns = TurnHandlers(state, dispatch, page_sync, recovery, audit, coordinator.moves)
    queries = QueryHandlers(
        state, coordinator.subscriptions, inspections, coordinator.query_history, coordinator.query_usage
    )
    admin = AdminHandlers(state, audit, coordinator.set_device_failure, coordinator.change_settings, stop)
    return RequestDispatcher(
        {**clients.handlers, **quotas.handlers, **turns.handlers, **queries.handlers, **admin.handlers},
        ProtocolSessions(state, dispatch, registry, coordinator.page_reader, page_sync, clients, quotas, inspections),
        coordinator.subscriptions,
        turns.on_closed,
        state.scheduler.event_log,
    )


def _request_id(line: bytes) -> int:
    """Return the id of a malformed request for the error reply, or 0."""
    try:
        number = msgspec.json.decode(line).get("id", 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, AttributeError):
        return 0
    return number if type(number) is int else 0
