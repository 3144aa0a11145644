"""What a process has open, really: its page and client page (sealed memfds), the lock file of each device.

Record locks belong to a whole operating-system process, and all simulated ones are one. An open file description of
one's own has locks of its own instead (`F_OFD_SETLK`), which keep record locks of the coordinator out and the reverse.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from pathlib import Path
from typing import Any

from jupyter_gpushare.wire.page import layout

from ..coordinator.fake_process import lock_file, memory

OFD_GETLK, OFD_SETLK = 36, 37
_FLOCK = struct.Struct("hhqqi4x")  # struct flock on 64-bit Linux: type, whence, start, length, pid
_UNLOCKED = fcntl.F_UNLCK


class Mapped:
    """A memfd of one of our structs, mapped."""

    def __init__(self, name: str, descriptor: int) -> None:
        ffi, _ = layout()
        self.descriptor = descriptor
        self.inode = os.fstat(descriptor).st_ino
        self._map = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        self._buffer = ffi.from_buffer(self._map)
        self.view: Any = ffi.cast(f"struct {name} *", self._buffer)

    def close(self) -> None:
        self.view = None
        layout()[0].release(self._buffer)
        self._map.close()
        os.close(self.descriptor)


class Files:
    """Of one process."""

    def __init__(self, devices: tuple[str, ...]) -> None:
        self._page = Mapped("gpushare_page", memory("gpushare_page"))
        self.orders: Any = self._page.view.orders
        self.report: Any = self._page.view.report
        self.inode = self._page.inode
        self.locks = [lock_file(uuid) for uuid in devices]
        self._record_before = -1
        self._take_client_page(memory("gpushare_client"))

    def _take_client_page(self, descriptor: int) -> None:
        self._client = Mapped("gpushare_client", descriptor)
        self.client: Any = self._client.view
        self.client_inode = self._client.inode
        self._record = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)

    def descriptors(self) -> list[int]:
        """Those that go with a hello."""
        return [self._page.descriptor, self._client.descriptor, *self.locks]

    def report_bytes(self) -> Any:
        """All that the process writes of its page."""
        return layout()[0].buffer(layout()[0].addressof(self._page.view, "report"))

    def join(self, client: int, locks: list[int], keep: bool) -> list[int]:
        """Use these from now on. Returns the locks before. `keep`: the record lock before, until `forget_joined`."""
        if keep and self._record_before < 0:
            self._record_before = os.dup(self._record)
        self._leave_client_page()
        self._take_client_page(client)
        before, self.locks = self.locks, locks
        return before

    @property
    def joined(self) -> bool:
        """Whether it runs by what it had before it joined."""
        return self._record_before >= 0

    def forget_joined(self) -> None:
        if self.joined:
            os.close(self._record_before)
        self._record_before = -1

    def _leave_client_page(self) -> None:
        self.client = None
        os.close(self._record)
        self._client.close()

    def close(self) -> None:
        """What the kernel does at the end of a process."""
        self._leave_client_page()
        self.forget_joined()
        self.orders = self.report = None
        self._page.close()
        for descriptor in self.locks:
            os.close(descriptor)

    # --- locks

    def flock(self, number: int, kind: int) -> bool:
        return flock(self.locks[number], kind)

    def locked(self) -> bool:
        """Whether the client has all its devices' locks, of either kind."""
        return all(lock_kind(descriptor) for descriptor in self.locks)

    def record_lock(self, lock: bool, byte: int) -> bool:
        wanted = _FLOCK.pack(fcntl.F_WRLCK if lock else _UNLOCKED, os.SEEK_SET, byte, 1, 0)
        try:
            fcntl.fcntl(self._record, OFD_SETLK, wanted)
        except BlockingIOError:
            return False
        return True

    def held_by_another(self, begin: int, end: int) -> int:
        """The first of these bytes that somebody else has locked, else `end`."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, end - begin, 0)
        kind, _, start, _, _ = _FLOCK.unpack(fcntl.fcntl(self._record, OFD_GETLK, asked))
        return end if kind == _UNLOCKED else max(int(start), begin)


def lock_kind(descriptor: int) -> str:
    """ "READ", "WRITE" or "": the lock that its open file description has."""
    for line in Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines():
        if "FLOCK" in line:
            return line.split()[4]
    return ""


def flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
