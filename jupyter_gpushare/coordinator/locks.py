"""The lock that backs every exclusive grant: one file per device, one open file description per client.

A process opens the file and passes the descriptor with its hello; `flock` belongs to the open file description, so it
outlives this coordinator as long as one process of the client lives, and nobody else can have it meanwhile.
"""

from __future__ import annotations

import fcntl
import os

from ..wire import address


class BadLock(ValueError):
    """A descriptor that a process offered as a device's lock and that is not that device's lock file."""


def check(descriptor: int, uuid: str) -> None:
    """Raise BadLock unless `descriptor` is the lock file of the device that everybody on this host uses."""
    path = address.lock_directory() / f"{uuid}.lock"
    try:
        expected, found = path.stat(), os.fstat(descriptor)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError as error:
        raise BadLock(f"{path}: {error.strerror}") from error
    if flags & os.O_PATH:
        raise BadLock(f"the descriptor for device {uuid} only names {path} and cannot be locked")
    if (expected.st_dev, expected.st_ino) != (found.st_dev, found.st_ino):
        raise BadLock(f"the descriptor for device {uuid} is not {path}")


class Locks:
    """One client's descriptors, by device."""

    def __init__(self) -> None:
        self._descriptors: dict[str, int] = {}
        self._held: set[str] = set()

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._descriptors

    def __getitem__(self, uuid: str) -> int:
        return self._descriptors[uuid]

    def add(self, uuid: str, descriptor: int) -> None:
        self._descriptors[uuid] = descriptor

    def acquire(self, devices: tuple[str, ...]) -> bool:
        """Lock all and return True; or False, because somebody else holds one: then what was locked before still is."""
        taken: list[str] = []
        for uuid in devices:
            try:
                fcntl.flock(self._descriptors[uuid], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.release(tuple(other for other in taken if other not in self._held))
                return False
            taken.append(uuid)
        self._held.update(devices)
        return True

    def release(self, devices: tuple[str, ...]) -> None:
        for uuid in devices:
            if uuid in self._descriptors:
                fcntl.flock(self._descriptors[uuid], fcntl.LOCK_UN)
            self._held.discard(uuid)

    def close(self) -> None:
        """Let go of the descriptors without unlocking: a process that is not quite dead still holds its device."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()
        self._held.clear()
