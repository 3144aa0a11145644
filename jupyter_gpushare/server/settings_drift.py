"""Warnings about settings of the running coordinator that differ from this server's `c.GpuShare`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..config.traits import GpuShare
from ..settings import SETTINGS
from ..settings.quota import QUOTA

_TABLE = {**SETTINGS, **QUOTA}


class SettingsDrift:
    """Comparison of this server's configuration with the settings of a coordinator.

    Another server, a user or the host may have started the coordinator.
    Only the first snapshot of a connection counts, because later changes are on purpose.
    """

    def __init__(self, settings: GpuShare, log: logging.Logger) -> None:
        self._settings = settings
        self._log = log
        self._reported: set[tuple[str, str]] = set()

    def on_snapshot(self, before: Mapping[str, Any] | None, status: Mapping[str, Any]) -> None:
        """Log each difference once."""
        if before is not None:
            return
        for name, configured, running in self._differences(status.get("config") or {}):
            if (name, repr(running)) not in self._reported:
                self._reported.add((name, repr(running)))
                self._log.warning(
                    "found that c.GpuShare.%s is %r in this server, but %r in the running coordinator. The coordinator "
                    "keeps its value until it stops; 'jupyter gpushare config %s VALUE' changes the value now.",
                    name,
                    configured,
                    running,
                    name,
                )

    def _differences(self, running: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
        for name in self._settings.config.get("GpuShare", {}):
            if name in running and self._settings.has_trait(name):
                configured = getattr(self._settings, name)
                if _comparable(name, configured) != _comparable(name, running[name], like=configured):
                    yield name, configured, running[name]


def _comparable(name: str, value: object, like: object = None) -> object:
    """Convert a value for a comparison, so that "16GiB" equals 17179869184. `like` selects the keys of a quota."""
    if isinstance(value, Mapping):
        keys = like.keys() if isinstance(like, Mapping) else value.keys()
        return {key: _comparable(key, value.get(key)) for key in keys}
    if value in ("", None):
        return None
    try:
        return _TABLE[name].read(value) if name in _TABLE else value
    except ValueError:
        return value
