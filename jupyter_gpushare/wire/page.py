"""The page, seen from Python: the structs of `native/shim/page.h`, read by cffi, over a mapped memfd."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import cffi

from . import text

_PACKAGE = Path(__file__).resolve().parent.parent
_HEADERS = (_PACKAGE / "native" / "page.h", _PACKAGE.parent / "native" / "shim" / "page.h")
_LAYOUT = re.compile(r"/\* layout begins \*/(.*)/\* layout ends \*/", re.DOTALL)
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_FUTEX_WAKE = 1
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "ppc64le": 221, "riscv64": 98}.get(platform.machine(), 202)
_ALL_WAITERS = 0x7FFFFFFF

UNKNOWN = (1 << 64) - 1
METERED = 1 << 31  # in the gate word; the agent's
_MEMORY_MODES = ("", *text.MEMORY_MODES)  # by number


class BadPage(ValueError):
    """A descriptor that a process offered as its page and that is not one."""


@lru_cache(maxsize=1)
def layout() -> tuple[cffi.FFI, dict[str, int]]:
    """The structs, and the GPUSHARE_… constants by name. Raises FileNotFoundError where the header is not installed."""
    for path in _HEADERS:
        if path.exists():
            break
    else:
        raise FileNotFoundError(f"page.h is in none of {', '.join(map(str, _HEADERS))}: the native parts are not built")
    found = _LAYOUT.search(path.read_text())
    if not found:
        raise ValueError(f"{path} has no layout section")
    constants = {name: int(value, 0) for name, value in re.findall(r"^#define\s+(\w+)\s+(\w+)", found[1], re.MULTILINE)}
    ffi = cffi.FFI()
    ffi.cdef(found[1])
    return ffi, constants


def memory_mode(number: int) -> str:
    """The name of `report.memory_mode`; "" where a process is older than page version 7, or doesn't say."""
    return _MEMORY_MODES[number] if 0 <= number < len(_MEMORY_MODES) else ""


def knows_resident(mode: int, asked_managed: int) -> bool:
    """Of a process's report: is `resident` to the byte? Else it is an estimate: unified memory cannot be asked."""
    return memory_mode(mode) in ("swap", "plain") and not asked_managed


# struct flock on 64-bit Linux: type, whence, start, length, pid
_FLOCK = struct.Struct("hhqqi4x")
_libc = ctypes.CDLL(None, use_errno=True)


class SharedMemory:
    """A sealed memfd of one of our structs, mapped. `view` has the struct's fields as attributes."""

    struct: str

    def __init__(self, descriptor: int) -> None:
        """Takes ownership of `descriptor`. Raises BadPage unless it is sealed against resizing, and large enough."""
        ffi, _ = layout()
        struct = self.struct
        self.descriptor = descriptor
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
            # Without these seals the process could shrink it and kill us with SIGBUS.
            if seals & _SEALS != _SEALS or size < ffi.sizeof(f"struct {struct}"):
                raise BadPage(f"a {struct} of {size} bytes with seals {seals:#x}")
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise BadPage(f"not a {struct}: {error}") from error
        self.inode = os.fstat(descriptor).st_ino
        self._base = ffi.from_buffer(self._map)
        self.view: Any = ffi.cast(f"struct {struct} *", self._base)

    def close(self) -> None:
        if self.descriptor < 0:
            return
        self.view = None
        layout()[0].release(self._base)
        self._map.close()
        os.close(self.descriptor)
        self.descriptor = -1


class Page(SharedMemory):
    """The page of one process."""

    struct = "gpushare_page"

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        ffi, constants = layout()
        magic = self.view.header.magic
        if magic != constants["GPUSHARE_PAGE_MAGIC"]:
            self.close()
            raise BadPage(f"not a page: magic {magic:#x}")
        self.orders: Any = self.view.orders
        self.report: Any = self.view.report
        self._gate = ffi.cast("char *", self.view) + ffi.offsetof("struct gpushare_page", "orders")
        self._address = int(ffi.cast("uintptr_t", self._gate))

    def close(self) -> None:
        self.orders = self.report = self._gate = None
        super().close()

    def values(self) -> dict[str, dict[str, int]]:
        """Every field of every block at this moment; an array's elements by number, `drains_0` and so on."""
        ffi, _ = layout()
        blocks = {name: getattr(self.view, name) for name in ("header", "orders", "report")}
        found: dict[str, dict[str, int]] = {}
        for name, block in blocks.items():
            fields = found[name] = {}
            for field, about in ffi.typeof(block).fields:
                value = getattr(block, field)
                if about.type.kind == "array":
                    fields |= {f"{field}_{number}": int(element) for number, element in enumerate(value)}
                else:
                    fields[field] = int(value)
        return found

    @property
    def gate_open(self) -> bool:
        return self.gate[0]

    @property
    def epoch(self) -> int:
        """Of the gate's last opening or closing."""
        return self.gate[1]

    @property
    def gate(self) -> tuple[bool, int]:
        """`gate_open` and `epoch` at the same moment."""
        word = int(self.orders.gate)
        return bool(word & 1), (word & ~METERED) >> 2

    def open_gate(self, epoch: int, step: bool = False) -> None:
        """Open (`step`: for one call of each thread), then wake every thread that waits.

        Plain stores: the futex call orders them before the wake-up.
        """
        word = (epoch << 2) | (3 if step else 1)
        if self.orders.gate & ~METERED != word:  # else the process has opened it by itself, and meters as it should
            self.orders.gate = word
        self.wake()

    def close_gate(self, epoch: int) -> None:
        """Store "closing"; the process's agent still has to be told by the doorbell."""
        self.orders.gate = (epoch << 2) | 2

    def interrupt(self) -> None:
        self.orders.interrupt_seq = (self.orders.interrupt_seq + 1) & 0xFFFFFFFF
        self.wake()

    def wake(self) -> None:
        _libc.syscall(
            ctypes.c_long(_SYS_FUTEX),
            ctypes.c_void_p(self._address),
            ctypes.c_int(_FUTEX_WAKE),
            ctypes.c_int(_ALL_WAITERS),
            None,
            None,
            0,
        )


class ClientPage(SharedMemory):
    """The page that the processes of one client share."""

    struct = "gpushare_client"

    def clear_slot(self, slot: int) -> None:
        """A process ended: what it had allocated no longer counts."""
        self.view.allocated[slot] = 0

    @contextmanager
    def no_turns(self) -> Iterator[bool]:
        """For the body, no process of the client begins or ends a turn by itself; False: one is just about to.

        They do so under a record lock on the byte behind all slots' two (`native/shim/lockmode.c`).
        """
        byte = 2 * layout()[1]["GPUSHARE_SLOTS"]
        try:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
        except OSError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, byte)

    def any_gate_open(self) -> bool:
        """Whether a process of the client, also one out of our reach, has its gate open or is not drained.

        It then holds a record lock on the byte of its slot; the kernel drops it when the process ends.
        """
        flock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, layout()[1]["GPUSHARE_SLOTS"], 0)
        kind, *_ = _FLOCK.unpack(fcntl.fcntl(self.descriptor, fcntl.F_GETLK, flock))
        return bool(kind != fcntl.F_UNLCK)
