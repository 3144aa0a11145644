"""A sign between coordinators of different users: one waits for a device that another one has.

While its client waits for a device's lock, a coordinator holds a shared record lock (of an open file description) on
byte 0 of the lock file, which no turn uses; without a coordinator, the process itself does. The coordinator whose
client has the device sees that, ends its turn in time, and leaves the device to others for a moment.
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

POLL_SECONDS = 0.1  # seconds; how soon a wait for a device that a client here has is seen
YIELD_POLL_SECONDS = 0.01  # and how soon that they have taken it

FLOCK_STRUCT = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid


class LockContention:
    """`feed` takes the events."""

    def __init__(self, devices: Mapping[str, Device], dispatch: Callable[[ev.Event], None]) -> None:
        self._devices = devices
        self._dispatch = dispatch
        self._files: dict[str, int] = {}
        self._signalled: set[str] = set()  # devices for which ours wait, as others see
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def close(self) -> None:
        if self._timer:
            self._timer.cancel()
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def update(self) -> None:
        """After every event: say for which devices ours wait, and look at what others say as long as that matters."""
        soon = None
        for uuid, device in self._devices.items():
            waits = device.taken_by_other_since is not None and device.yielded_until is None and bool(device.queue)
            if waits != (uuid in self._signalled):
                self._signal_waiting(uuid, waits)
            if device.yielded_until is not None:
                soon = YIELD_POLL_SECONDS
            elif device.grants or device.lock_contended_since is not None:
                soon = soon or POLL_SECONDS
        if soon and (self._timer is None or self._timer.when() > self._loop.time() + soon):
            if self._timer:
                self._timer.cancel()
            self._timer = self._loop.call_later(soon, self._poll)

    def _poll(self) -> None:
        self._timer = None
        for uuid, device in list(self._devices.items()):
            wanted = bool(device.grants or device.yielded_until is not None) and self._is_contended(uuid)
            if wanted != (device.lock_contended_since is not None):
                self._dispatch(ev.LockContended(uuid, wanted))
        self.update()

    def _signal_waiting(self, uuid: str, waits: bool) -> None:
        with contextlib.suppress(OSError):  # without the file nobody can have the device, or tell of it
            self._lock_byte(uuid, fcntl.F_OFD_SETLK, fcntl.F_RDLCK if waits else fcntl.F_UNLCK)
            (self._signalled.add if waits else self._signalled.discard)(uuid)

    def _is_contended(self, uuid: str) -> bool:
        with contextlib.suppress(OSError):
            return self._lock_byte(uuid, fcntl.F_OFD_GETLK, fcntl.F_WRLCK) != fcntl.F_UNLCK
        return False

    def _lock_byte(self, uuid: str, command: int, kind: int) -> int:
        """Returns the kind of lock that stands against it. Raises OSError."""
        path = address.lock_directory() / f"{uuid}.lock"
        file = self._files.get(uuid)
        if file is not None and not os.path.samestat(os.fstat(file), path.lstat()):
            os.close(self._files.pop(uuid))  # another one has been made
            self._signalled.discard(uuid)
            file = None
        if file is None:
            file = self._files[uuid] = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        found: int = FLOCK_STRUCT.unpack(fcntl.fcntl(file, command, FLOCK_STRUCT.pack(kind, os.SEEK_SET, 0, 1, 0)))[0]
        return found
