"""Lock files and bells of devices, as one process has them open to enter and leave turns."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any

from ..wire import address
from .rule import ffi

REFUSED, ENTERED = 0, 1


def open_lock(uuid: str) -> int:
    """Return an open file description of the device's lock file, and create the file if it is missing."""
    folder = address.lock_directory()
    folder.mkdir(mode=0o1777, parents=True, exist_ok=True)
    return _allow_all_users(
        os.open(folder / f"{uuid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    )


def open_bell(uuid: str) -> int:
    """Return the device's bell, and create the FIFO if it is missing."""
    path = address.lock_directory() / f"{uuid}.bell"
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o666)
    bell = _allow_all_users(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
    assert stat.S_ISFIFO(os.fstat(bell).st_mode), f"{path} is not a FIFO"
    return bell


def _allow_all_users(descriptor: int) -> int:
    if stat.S_IMODE(os.fstat(descriptor).st_mode) != 0o666:
        os.fchmod(descriptor, 0o666)
    return descriptor


class LockFiles:
    """Lock files and bells of one process.

    `entered` has the devices on which the process is in a turn, in the order of their UUIDs.
    """

    def __init__(self, native: Any) -> None:
        self._native = native
        self._locks: dict[str, int] = {}
        self._bells: dict[str, int] = {}
        self.entered: list[str] = []

    def lock(self, uuid: str) -> int:
        if uuid not in self._locks:
            self._locks[uuid] = open_lock(uuid)
        return self._locks[uuid]

    def bell(self, uuid: str) -> int:
        if uuid not in self._bells:
            self._bells[uuid] = open_bell(uuid)
        return self._bells[uuid]

    def _files(self, devices: list[str]) -> Any:
        return ffi.new("int[]", [self.lock(uuid) for uuid in devices])

    def enter(self, devices: list[str], turn: int, join: bool) -> bool:
        """Enter the turn on all devices, or on none."""
        devices = sorted(devices)
        if not devices or self._native.turn_enter(self._files(devices), len(devices), turn, join) != ENTERED:
            return False
        self.entered = devices
        return True

    def leave(self, turn: int) -> None:
        devices, self.entered = self.entered, []
        self._native.turn_leave(self._files(devices), len(devices), turn)

    def has_others(self, devices: list[str], turn: int) -> bool:
        """Return whether another process is in the turn on one of the devices."""
        return any(self._native.turn_has_others(self.lock(uuid), turn) for uuid in devices)

    def show_waiting(self, devices: tuple[str, ...], waits: bool) -> None:
        for uuid in devices:
            self._native.turn_show_waiting(self.lock(uuid), waits)

    def ring(self, uuid: str) -> None:
        with contextlib.suppress(BlockingIOError):  # a full FIFO wakes the waiting processes anyway
            os.write(self.bell(uuid), b"\n")

    def take_ring(self, uuid: str) -> bool:
        """Read all bytes from the bell's FIFO, and return whether the bell has rung."""
        try:
            return bool(os.read(self.bell(uuid), 4096))
        except BlockingIOError:
            return False

    @property
    def descriptors(self) -> int:
        """Return the number of open files."""
        return len(self._locks) + len(self._bells)

    def close(self) -> None:
        """Close all files as the Linux kernel does at the end of a process: this frees the locks and rings no bell."""
        for descriptor in (*self._locks.values(), *self._bells.values()):
            os.close(descriptor)
        self._locks.clear()
        self._bells.clear()
        self.entered = []
