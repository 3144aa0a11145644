"""The lock that backs every grant: one file per device, one open file description per client.

A process opens the file and passes the descriptor with its hello; `flock` belongs to the open file description, so it
outlives this coordinator as long as one process of the client lives, and nobody else can have it meanwhile.

Clients that run together have shared locks. The first of them needs an exclusive one before, which it turns into a
shared one while its gate is closed still: so all shared locks of a device are one coordinator's clients'.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import os
import stat
from collections.abc import Collection
from pathlib import Path

from ..wire import address


class BadLock(ValueError):
    """A descriptor that a process offered as a device's lock and that is not that device's lock file."""


def make_file(uuid: str) -> None:
    """The device's lock file, for everybody.

    Raises OSError, also if somebody has made it another way before: that is somebody else's file, in a sticky folder.
    """
    directory = address.lock_directory()
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o1777)
        directory.chmod(0o1777)
    path = directory / f"{uuid}.lock"
    with contextlib.suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666)
        try:
            os.fchmod(descriptor, 0o666)  # whatever our umask
        finally:
            os.close(descriptor)
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o666 != 0o666:
        raise PermissionError(
            f"{path} is not a file of mode 0666, so others cannot lock it: uid {found.st_uid} made it"
        )


def holders(uuid: str) -> list[int]:
    """Processes of this host that have locked the device: the kernel names who asked for the lock."""
    try:
        found = (address.lock_directory() / f"{uuid}.lock").lstat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    # "1: FLOCK  ADVISORY  WRITE 4711 00:1a:42 0 EOF"; "1: -> FLOCK ..." only waits.
    fields = [line.split() for line in lines]
    return sorted({int(one[4]) for one in fields if one[1] == "FLOCK" and one[5] == name and int(one[4]) > 0})


def check(descriptor: int, uuid: str) -> None:
    """Raise BadLock unless `descriptor` is the lock file of the device that everybody on this host uses."""
    path = address.lock_directory() / f"{uuid}.lock"
    try:
        expected, found = path.lstat(), os.fstat(descriptor)
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    except OSError as error:
        raise BadLock(f"{path}: {error.strerror}") from error
    if flags & os.O_PATH:
        raise BadLock(f"the descriptor for device {uuid} only names {path} and cannot be locked")
    if (expected.st_dev, expected.st_ino) != (found.st_dev, found.st_ino):
        raise BadLock(f"the descriptor for device {uuid} is not {path}")


class Mode(enum.Enum):
    EXCLUSIVE = "exclusive"
    SHARED = "shared"  # others of this coordinator's clients may join
    JOIN = "join"  # one of them has it
    KEEP = "keep"  # whatever it has; an exclusive one if it has none


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

    def holds(self, uuid: str) -> bool:
        """Whether that device was locked here, and not unlocked since."""
        return uuid in self._held

    def found(self, uuid: str) -> bool:
        """Whether that device is locked by the client, whoever did it: a process of it can, too."""
        return uuid in self._descriptors and bool(_held_by(self._descriptors[uuid]))

    def acquire(
        self, devices: tuple[str, ...], mode: Mode = Mode.EXCLUSIVE, beside: Collection[str] = frozenset()
    ) -> bool:
        """Lock all and return True; or False, because somebody else holds one: then what was locked before still is.

        `beside`: those of which another of this coordinator's clients holds a shared lock, for SHARED ones to join.
        """
        taken: list[str] = []
        for uuid in devices:
            joins = mode is Mode.SHARED and uuid in beside
            if not _acquire(self._descriptors[uuid], Mode.JOIN if joins else mode):
                self.release(tuple(other for other in taken if other not in self._held))
                return False
            taken.append(uuid)
        self._held.update(devices)
        return True

    def shared(self, devices: tuple[str, ...]) -> bool:
        """Whether the locks that are held of these devices are shared ones."""
        return any(_held_by(self._descriptors[uuid]) == "READ" for uuid in devices)

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


def _acquire(descriptor: int, mode: Mode) -> bool:
    held = _held_by(descriptor)
    # Changing the kind of a lock lets go of it for a moment, so that is done only while the gate is closed.
    if held == "WRITE" or (held and mode in (Mode.KEEP, Mode.JOIN)):
        return True
    if mode is Mode.JOIN:
        return _flock(descriptor, fcntl.LOCK_SH)
    if not _flock(descriptor, fcntl.LOCK_EX):
        return False
    return mode is not Mode.SHARED or _flock(descriptor, fcntl.LOCK_SH)


def _flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _held_by(descriptor: int) -> str:
    """ "WRITE" (exclusive), "READ" (shared) or "" (none): what the open file description has."""
    with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as file:
        for line in file:
            if line.startswith("lock:") and "FLOCK" in line:
                return "WRITE" if "WRITE" in line else "READ"
    return ""
