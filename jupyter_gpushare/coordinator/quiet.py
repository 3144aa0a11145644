"""The log says what peers do wrong, but no peer fills it by that."""

from __future__ import annotations

import logging
import time

from .peer import Peer

LINES = 100  # of one kind, about one user, in a window
WINDOW = 600.0  # seconds


class Quiet(logging.Filter):
    """Of warnings and what is less. Who asks for DEBUG wants all of that, and bugs are always told."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._said: dict[tuple[object, str], int] = {}  # by what is said, and whom about

    def filter(self, record: logging.LogRecord) -> bool:
        if not logging.DEBUG < record.levelno < logging.ERROR:
            return True
        if time.monotonic() - self._began > WINDOW:
            self._began = time.monotonic()
            self._said.clear()
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        about = (record.msg, first.user if isinstance(first, Peer) else "")
        said = self._said[about] = self._said.get(about, 0) + 1
        if said == LINES:
            record.msg, record.args = f"{record.getMessage()} (the like is left out for up to 10 minutes)", ()
        return said <= LINES
