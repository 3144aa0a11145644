"""Registration of clients by a request, a process or a kernel, and their unregistration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ....core.base.errors import Refused
from ....core.interface import events as ev
from ....core.placement import PlacementRequest
from ....wire import messages
from ...clients.client_runtime import ClientRuntime
from ...config import quota_parsing
from ...engine.client_registry import ClientRegistry
from ...engine.state import CoordinatorState
from ...storage.audit_log import AuditLog
from ...transport.connection import Connection
from . import Handler, client_owned_by

log = logging.getLogger(__name__)


class ClientHandlers:
    """Handlers that register and unregister the clients of one coordinator."""

    def __init__(
        self,
        state: CoordinatorState,
        dispatch: Callable[[ev.Event], None],
        registry: ClientRegistry,
        audit: AuditLog,
        count_orphan: Callable[[ClientRuntime], None],
    ) -> None:
        self._state = state
        self._dispatch = dispatch
        self._registry = registry
        self._audit = audit
        self._count_orphan = count_orphan
        self.handlers: dict[type, Handler] = {
            messages.Register: self._register,
            messages.Bind: self._bind,
            messages.Unregister: self._unregister,
        }

    def get_or_create(
        self, connection: Connection, message: messages.Hello | messages.Attach | messages.Register
    ) -> ClientRuntime:
        """Return the client of a message, which is registered if it is new. Raises PermissionError and Refused."""
        gpus = message.gpus if isinstance(message, messages.Register) else None
        settings = self._state.settings
        tenants = self._state.scheduler.placement_adapter.placement.tenants
        default = tenants.reduce_to_ceiling(settings.default_quota, settings.tenant_lookup.tenant_of(connection.user))
        try:
            quota, request = quota_parsing.parse_request(message.quota, default, gpus or 1)
        except Refused as error:
            if gpus is not None:
                raise
            log.warning("%s: ignoring the quota %r: %s", connection, message.quota, error)
            quota, request = default, PlacementRequest()
        # A process or kernel that runs has chosen its devices already.
        runtime = self._registry.get_or_create(
            message.client, message.token, connection.user, message.label, quota, request, running=gpus is None
        )
        runtime.is_unregistered = False
        return runtime

    def _register(self, connection: Connection, request: messages.Register) -> Any:
        known = request.client in self._state.runtimes
        runtime = self.get_or_create(connection, request)
        if request.ends_with_sender:
            self._registry.exit_watcher.watch(runtime, connection)
        self._registry.remove_if_unconnected(runtime)
        return {"client": request.client, "devices": self._visible_devices(request.client), "known": known}

    def _bind(self, connection: Connection, request: messages.Bind) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        if runtime.token != request.token:
            raise PermissionError(f"the token does not match that of client {request.client!r}")
        self._dispatch(ev.DevicesRequested(request.client))
        return {"devices": self._visible_devices(request.client)}

    def _visible_devices(self, client: str) -> list[str]:
        """Return the devices that the processes of a client must name to the driver; none: all that there are."""
        scheduler = self._state.scheduler
        is_choice = len(scheduler.placement_adapter.placement.schedulable_devices) > 1
        return list(scheduler.clients[client].devices) if is_choice else []

    def _unregister(self, connection: Connection, request: messages.Unregister) -> Any:
        runtime = client_owned_by(self._state, connection, request.client)
        # A user's own clients are unregistered with each kernel, which is no change to audit.
        if request.is_orphan and not runtime.is_unregistered:
            self._audit.record(connection, "orphan", request.client, "running", "ended")
            self._count_orphan(runtime)
        elif self._state.scheduler.clients[request.client].user != connection.user:
            self._audit.record(connection, "unregister", request.client, "registered", "unregistered")
        runtime.is_unregistered = True
        self._registry.remove_if_unconnected(runtime)
        return {}
