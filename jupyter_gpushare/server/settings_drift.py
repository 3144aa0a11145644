"""Telling an admin once when the running coordinator does not follow this server's `c.GpuShare`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from ..config.traits import GpuShare
from ..settings import SETTINGS
from ..settings.quota import QUOTA

_TABLE = {**SETTINGS, **QUOTA}


class SettingsDrift:
    """Compares what this server's configuration sets with what a coordinator that it connected to uses.

    That one may have been started by another server, by hand or for the whole host. Only the first snapshot
    after connecting is compared: later changes were made on purpose.
    """

    def __init__(self, settings: GpuShare, log: logging.Logger) -> None:
        self._settings = settings
        self._log = log
        self._reported: set[tuple[str, str]] = set()

    def report(self, status: Mapping[str, Any]) -> None:
        """Warn of each difference once."""
        for name, ours, theirs in self._differences(status.get("config") or {}):
            if (name, repr(theirs)) not in self._reported:
                self._reported.add((name, repr(theirs)))
                self._log.warning(
                    "GPU sharing: c.GpuShare.%s is %r here, but the running coordinator uses %r. It keeps "
                    "its own settings until it stops; `jupyter gpushare config %s VALUE` changes it now.",
                    name,
                    ours,
                    theirs,
                    name,
                )

    def _differences(self, theirs: Mapping[str, Any]) -> Iterator[tuple[str, object, object]]:
        for name in self._settings.config.get("GpuShare", {}):
            if name in theirs and self._settings.has_trait(name):
                ours = getattr(self._settings, name)
                if _comparable(name, ours) != _comparable(name, theirs[name], like=ours):
                    yield name, ours, theirs[name]


def _comparable(name: str, value: object, like: object = None) -> object:
    """A value in a form that compares: "16GiB" equals 17179869184. `like` selects the keys of a quota."""
    if isinstance(value, Mapping):
        keys = like.keys() if isinstance(like, Mapping) else value.keys()
        return {key: _comparable(key, value.get(key)) for key in keys}
    if value in ("", None):
        return None
    try:
        return _TABLE[name].read(value) if name in _TABLE else value
    except ValueError:
        return value
