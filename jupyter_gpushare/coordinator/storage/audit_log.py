"""Log of changes by users and policies, in lines of JSON."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..transport.connection import Connection
from ..transport.rate_limits import WindowCounter

MAX_FILE_BYTES = 16 << 20
MAX_FILES = 4  # with the current one, so that changes cannot fill the disk
MAX_CHANGES = 1000  # of one user in a window, so that many changes cannot push out earlier records
WINDOW_SECONDS = 3600.0

log = logging.getLogger(__name__)


class AuditLog:
    """File `audit.log` in `directory`, which only its owner can read. `clock` returns seconds.

    A full disk causes one log record, and the coordinator goes on without the audit log.
    """

    def __init__(self, directory: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = directory / "audit.log"
        self._failed = False
        self._change_counts = WindowCounter(WINDOW_SECONDS, clock)  # by user

    def record(self, connection: Connection | None, action: str, subject: str, old: Any, new: Any) -> None:
        """Write a line about a change, unless `old` equals `new`.

        `connection` is the connection of the user that requested the change, or None for a policy. `subject` is the
        client or the device, or "" for the coordinator.
        """
        if old == new:
            return
        if connection and not connection.admin:
            count = self._change_counts.count(connection.user)
            if count > MAX_CHANGES:
                return
            if count == MAX_CHANGES:
                action, subject, old, new = "too many changes", "", None, "not recording this user for up to an hour"
        entry = {
            "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "user": connection.user if connection else None,
            "uid": connection.uid if connection else os.getuid(),
            "pid": connection.pid if connection else os.getpid(),
            "what": action,
            "subject": subject,
            "old": old,
            "new": new,
        }
        try:
            self._write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            if not self._failed:
                log.error("cannot record changes in the audit log %s: %s", self._path, error.strerror)
            self._failed = True
        else:
            self._failed = False

    def _write(self, line: bytes) -> None:
        path = self._path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if (written := os.write(descriptor, line)) < len(line):
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - written)  # part of a line would spoil the next
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            full = os.fstat(descriptor).st_size > MAX_FILE_BYTES
        finally:
            os.close(descriptor)
        for number in range(MAX_FILES - 1, 0, -1) if full else ():
            older = path.with_name(f"{path.name}.{number - 1}" if number > 1 else path.name)
            with contextlib.suppress(FileNotFoundError):
                older.replace(path.with_name(f"{path.name}.{number}"))
