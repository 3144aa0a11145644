"""Requests of admins: failures of devices, settings and the end of the coordinator."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ....wire import messages
from ...engine.coordinator import Coordinator
from ...transport.connection import Connection
from . import Handler
from .authorization import require_admin

log = logging.getLogger(__name__)


class AdminHandlers:
    def __init__(self, coordinator: Coordinator, stop: Callable[[], None]) -> None:
        self._coordinator = coordinator
        self._stop = stop
        self.handlers: dict[type, Handler] = {
            messages.Device: self._set_device_failure,
            messages.Config: self._change_settings,
            messages.Stop: self._stop_coordinator,
        }

    def _set_device_failure(self, connection: Connection, request: messages.Device) -> Any:
        require_admin(connection, "take devices out of use")
        before = self._coordinator.set_device_failure(request.device, request.failed)
        self._coordinator.audit.record(connection, "device", request.device, before, request.failed)
        log.info("%s set device %s to: %s", connection, request.device, request.failed or "works")
        return {"clients": list(self._coordinator.scheduler.placement_adapter.placement.clients_on(request.device))}

    def _change_settings(self, connection: Connection, request: messages.Config) -> Any:
        if request.changes:
            require_admin(connection, "change settings")
            before = self._coordinator.settings.as_json()
            self._coordinator.change_settings(self._coordinator.settings.with_changes(request.changes))
            after = self._coordinator.settings.as_json()
            changed = [name for name in after if after[name] != before[name]]
            self._coordinator.audit.record(
                connection,
                "settings",
                "",
                {name: before[name] for name in changed},
                {name: after[name] for name in changed},
            )
            log.info("%s changed the settings from %s to %s", connection, before, after)
        return self._coordinator.config()

    def _stop_coordinator(self, connection: Connection, request: messages.Stop) -> Any:
        require_admin(connection, "stop the coordinator")
        self._coordinator.audit.record(connection, "stop", "", "running", "stopped")
        log.info("stopping this coordinator at the request of %s", connection)
        self._stop()
        return {}
