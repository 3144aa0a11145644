"""Live changes of settings, kept for a coordinator that takes the place of one that was killed.

A small file beside the socket. Who ends in order removes it, for live changes last until the coordinator stops; while
one lives it is touched every second, so that what is long past is not brought back.
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

MAX_AGE_SECONDS = 600.0  # seconds without a coordinator after which its changes are forgotten

log = logging.getLogger(__name__)


class SettingsOverrideFile:
    """The file of one socket."""

    def __init__(self, socket_path: str) -> None:
        self._path = Path(socket_path + ".settings")
        self._changes: dict[str, Any] = {}

    def restore(self, settings: LiveSettings) -> LiveSettings:
        """`settings` as they were changed under a coordinator that was killed; as they are if none was."""
        try:
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)) as file:
                found = os.fstat(file.fileno())
                if found.st_uid != os.getuid():  # the socket may lie in a folder that others write to
                    raise PermissionError(f"it belongs to uid {found.st_uid}")
                if time.time() - found.st_mtime > MAX_AGE_SECONDS:
                    self.remove()
                    return settings
                changes = dict(json.load(file))
            changed = settings.with_changes(changes)
        except FileNotFoundError:
            return settings
        except (OSError, ValueError, TypeError, Refused) as error:
            log.warning("settings in %s are not used: %s", self._path, error)
            self.remove()
            return settings
        self._changes = changes
        log.info("settings changed under an earlier coordinator hold on: %s", changes)
        return changed

    def update(self, changes: dict[str, Any]) -> None:
        """Values in force from now on, by name."""
        self._changes |= changes
        fresh = self._path.with_name(self._path.name + ".new")
        try:
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w") as file:
                json.dump(self._changes, file)
            fresh.replace(self._path)
        except OSError as error:
            log.warning("changed settings cannot be kept in %s: %s", self._path, error)

    def refresh(self) -> None:
        if self._changes:
            with contextlib.suppress(OSError):
                os.utime(self._path)

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink()
