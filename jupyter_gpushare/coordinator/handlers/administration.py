"""What admins do: devices out of use and into use again, settings, the coordinator's end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...wire import messages
from ..daemon import Daemon
from ..peer import Peer
from . import Handler
from .access import admins_only

log = logging.getLogger(__name__)


class Administration:
    def __init__(self, daemon: Daemon, stop: Callable[[], None]) -> None:
        self._daemon = daemon
        self._stop = stop
        self.handlers: dict[type, Handler] = {
            messages.Device: self._device,
            messages.Config: self._config,
            messages.Stop: self._end,
        }

    def _device(self, peer: Peer, request: messages.Device) -> Any:
        admins_only(peer, "take devices out of use")
        before = self._daemon.set_health(request.device, request.failed)
        self._daemon.audit.note(peer, "device", request.device, before, request.failed)
        log.info("%s says of device %s: %s", peer, request.device, request.failed or "works again")
        return {"clients": list(self._daemon.scheduler.placing.placement.on(request.device))}

    def _config(self, peer: Peer, request: messages.Config) -> Any:
        if request.changes:
            admins_only(peer, "change its settings")
            before = self._daemon.settings.as_json()
            self._daemon.change_settings(self._daemon.settings.changed(request.changes))
            after = self._daemon.settings.as_json()
            named = [name for name in after if after[name] != before[name]]
            self._daemon.audit.note(
                peer, "settings", "", {name: before[name] for name in named}, {name: after[name] for name in named}
            )
            log.info("%s changed the settings from %s to %s", peer, before, after)
        return self._daemon.config()

    def _end(self, peer: Peer, request: messages.Stop) -> Any:
        admins_only(peer, "stop it")
        self._daemon.audit.note(peer, "stop", "", "running", "stopped")
        log.info("%s stops this coordinator", peer)
        self._stop()
        return {}
