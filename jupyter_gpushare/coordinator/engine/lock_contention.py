"""Signal between coordinators of different users that a client waits for a device.

The signal is a shared OFD record lock on byte 0 of the device's lock file, which turns do not use. A coordinator holds
this lock while one of its clients waits and a client of another coordinator has the device. Without a coordinator, the
waiting process holds the lock. A coordinator whose client has the device polls the byte, and dispatches LockContended
when the signal begins or ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Mapping

from ...core.interface import events as ev
from ...core.state.model import Device
from ...wire import address

POLL_SECONDS = 0.1  # poll interval while a client of this coordinator has a device
YIELD_POLL_SECONDS = 0.01  # poll interval while a device is yielded to other coordinators

FLOCK_STRUCT = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid


class LockContention:
    """Sender of this coordinator's signals.

    `dispatch` receives an event for each signal of another coordinator.
    """

    def __init__(self, devices: Mapping[str, Device], dispatch: Callable[[ev.Event], None]) -> None:
        self._devices = devices
        self._dispatch = dispatch
        self._files: dict[str, int] = {}
        self._signalled: set[str] = set()  # devices with a record lock of this coordinator
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def update(self) -> None:
        """Signal the devices that clients wait for, and poll other coordinators' signals while these matter.

        The coordinator calls this after every event.
        """
        delay = None
        for uuid, device in self._devices.items():
            waits = device.taken_by_other_since is not None and device.yielded_until is None and bool(device.queue)
            if waits != (uuid in self._signalled):
                self._signal_waiting(uuid, waits)
            if device.yielded_until is not None:
                delay = YIELD_POLL_SECONDS
            elif device.grants or device.lock_contended_since is not None:
                delay = delay or POLL_SECONDS
        if delay and (self._timer is None or self._timer.when() > self._loop.time() + delay):
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_later(delay, self._poll)

    def _poll(self) -> None:
        self._timer = None
        for uuid, device in list(self._devices.items()):
            contended = bool(device.grants or device.yielded_until is not None) and self._is_contended(uuid)
            if contended != (device.lock_contended_since is not None):
                self._dispatch(ev.LockContended(uuid, contended))
        self.update()

    def _signal_waiting(self, uuid: str, waits: bool) -> None:
        with contextlib.suppress(OSError):  # without the file no process can have the device or signal
            self._lock_byte(uuid, fcntl.F_OFD_SETLK, fcntl.F_RDLCK if waits else fcntl.F_UNLCK)
            (self._signalled.add if waits else self._signalled.discard)(uuid)

    def _is_contended(self, uuid: str) -> bool:
        with contextlib.suppress(OSError):
            return self._lock_byte(uuid, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK
        return False

    def _lock_byte(self, uuid: str, command: int, kind: int) -> int:
        """Apply a lock command to byte 0, and return the kind of the conflicting lock. Raises OSError."""
        path = address.lock_directory() / f"{uuid}.lock"
        file = self._files.get(uuid)
        if file is not None and not os.path.samestat(os.fstat(file), path.lstat()):
            os.close(self._files.pop(uuid))  # the file was replaced
            self._signalled.discard(uuid)
            file = None
        if file is None:
            file = self._files[uuid] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        result = fcntl.fcntl(file, command, FLOCK_STRUCT.pack(kind, os.SEEK_SET, 0, 1, 0))
        conflict: int = FLOCK_STRUCT.unpack(result)[0]
        return conflict
