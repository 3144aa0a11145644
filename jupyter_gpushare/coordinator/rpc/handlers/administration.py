"""Requests of admins: failures of devices, settings and the end of the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ....wire import messages
from ...config.live_settings import LiveSettings
from ...engine.state import CoordinatorState
from ...storage.audit_log import AuditLog
from ...transport.connection import Connection
from . import Handler, require_admin

log = logging.getLogger(__name__)


class AdminHandlers:
    """Handlers of admins' requests, which call the other arguments after the check of the connection."""

    def __init__(
        self,
        state: CoordinatorState,
        audit: AuditLog,
        set_device_failure: Callable[[str, str], str],
        change_settings: Callable[[LiveSettings], None],
        stop: Callable[[], None],
    ) -> None:
        self._state = state
        self._audit = audit
        self._apply_device_failure = set_device_failure
        self._apply_settings = change_settings
        self._stop = stop
        self.handlers: dict[type, Handler] = {
            messages.Device: self._set_device_failure,
            messages.Config: self._change_settings,
            messages.Stop: self._stop_coordinator,
        }

    def _set_device_failure(self, connection: Connection, request: messages.Device) -> Any:
        require_admin(connection, "take devices out of use")
        devices, placement = self._state.scheduler.devices, self._state.scheduler.placement_adapter.placement
        slices = [uuid for uuid, device in devices.items() if device.info.parent == request.device]
        clients: dict[str, None] = {}
        for uuid in slices or [request.device]:
            before = self._apply_device_failure(uuid, request.failed)
            self._audit.record(connection, "device", uuid, before, request.failed)
            log.info("%s set device %s to: %s", connection, uuid, request.failed or "works")
            clients |= dict.fromkeys(placement.clients_on(uuid))
        return {"clients": list(clients)}

    def _change_settings(self, connection: Connection, request: messages.Config) -> Any:
        if request.changes:
            require_admin(connection, "change settings")
            before = self._state.settings.as_json()
            self._apply_settings(self._state.settings.with_changes(request.changes))
            after = self._state.settings.as_json()
            changed = [name for name in after if after[name] != before[name]]
            self._audit.record(
                connection,
                "settings",
                "",
                {name: before[name] for name in changed},
                {name: after[name] for name in changed},
            )
            log.info("%s changed the settings from %s to %s", connection, before, after)
        return self._state.config()

    def _stop_coordinator(self, connection: Connection, request: messages.Stop) -> Any:
        require_admin(connection, "stop the coordinator")
        self._audit.record(connection, "stop", "", "running", "stopped")
        log.info("stopping this coordinator at the request of %s", connection)
        self._stop()
        return {}
