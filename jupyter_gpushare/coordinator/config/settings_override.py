"""File with live changes of settings, for the coordinator that replaces a killed one.

The file lies next to the socket. A coordinator that stops in order removes the file, because live changes last until
the coordinator stops. A running coordinator updates the file's time every second, so that old changes are not restored.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

from ...core.base.errors import Refused
from .live_settings import LiveSettings

MAX_AGE_SECONDS = 600.0  # time without a coordinator after which its changes are discarded

log = logging.getLogger(__name__)


class SettingsOverrideFile:
    """File with the live changes of one socket's coordinator."""

    def __init__(self, socket_path: str) -> None:
        self._path = Path(socket_path + ".settings")
        self._changes: dict[str, Any] = {}

    def restore(self, settings: LiveSettings) -> LiveSettings:
        """Return `settings` with the changes of a coordinator that was killed, if there are any."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
                status = os.fstat(file.fileno())
                if status.st_uid != os.getuid():  # other users may write to the socket's folder
                    raise PermissionError(f"the file belongs to uid {status.st_uid}")
                if time.time() - status.st_mtime > MAX_AGE_SECONDS:
                    self.remove()
                    return settings
                changes = dict(json.load(file))
            changed = settings.with_changes(changes)
        except FileNotFoundError:
            return settings
        except (OSError, ValueError, TypeError, Refused) as error:
            log.warning("ignoring the settings in %s: %s", self._path, error)
            self.remove()
            return settings
        self._changes = changes
        log.info("restoring settings that an admin changed under an earlier coordinator: %s", changes)
        return changed

    def update(self, changes: dict[str, Any]) -> None:
        """Add changes to the file, by name."""
        self._changes |= changes
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(self._changes, file)
            fresh.replace(self._path)
        except OSError as error:
            log.warning("cannot write changed settings to %s: %s", self._path, error)

    def refresh(self) -> None:
        if self._changes:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
