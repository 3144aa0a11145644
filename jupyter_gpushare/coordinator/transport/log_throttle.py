"""Rate limit for log records, so that a misbehaving peer cannot fill the log."""

from __future__ import annotations

import logging

from .connection import Connection
from .rate_limits import WindowCounter

MAX_RECORDS = 100  # per message and user, in one window
WINDOW_SECONDS = 600.0


class LogThrottle(logging.Filter):
    """Filter that drops INFO and WARNING records that repeat too often.

    DEBUG records pass because a developer has asked for them; ERROR records pass because they report bugs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._counts = WindowCounter(WINDOW_SECONDS)  # by message and user

    def filter(self, record: logging.LogRecord) -> bool:
        if not logging.DEBUG < record.levelno < logging.ERROR:
            return True
        subject = record.args[0] if isinstance(record.args, tuple) and record.args else None
        count = self._counts.count((str(record.msg), subject.user if isinstance(subject, Connection) else ""))
        if count == MAX_RECORDS:
            record.msg, record.args = f"{record.getMessage()} (similar records are suppressed for up to 10 minutes)", ()
        return count <= MAX_RECORDS
