"""The log says what peers do wrong, but no peer fills it by that."""

from __future__ import annotations

import logging

from .connection import Connection
from .rate_limits import WindowCounter

MAX_RECORDS = 100  # of one kind, about one user, in a window
WINDOW_SECONDS = 600.0  # seconds


class LogThrottle(logging.Filter):
    """Of warnings and what is less. Who asks for DEBUG wants all of that, and bugs are always told."""

    def __init__(self) -> None:
        super().__init__()
        self._counts = WindowCounter(WINDOW_SECONDS)  # by what is said, and whom about

    def filter(self, record: logging.LogRecord) -> bool:
        if not logging.DEBUG < record.levelno < logging.ERROR:
            return True
        first = record.args[0] if isinstance(record.args, tuple) and record.args else None
        said = self._counts.count((str(record.msg), first.user if isinstance(first, Connection) else ""))
        if said == MAX_RECORDS:
            record.msg, record.args = f"{record.getMessage()} (the like is left out for up to 10 minutes)", ()
        return said <= MAX_RECORDS
