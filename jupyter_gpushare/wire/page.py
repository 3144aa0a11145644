"""Page and client page in Python: the structs of `native/shim/base/page.h`, which cffi reads, over mapped memfds."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import cffi

from . import quotas

_PACKAGE = Path(__file__).resolve().parent.parent
_SHIM = _PACKAGE.parent / "native" / "shim"
_HEADERS = (_PACKAGE / "native", _SHIM / "base", _SHIM / "agent")
_SEALS = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_CHECKSUM_FACTOR = 0x9E3779B97F4A7C15

UNKNOWN = (1 << 64) - 1
MAY, RELIEVED, CONTENDED = 1, 2, 4  # permit.flags
OUT, IN, CLOSING, STEP, LEAVING = range(5)  # turn.phase
BLOCKS, TIME = range(2)  # budget_unit
FIRST_TURN, LAST_TURN = 1 << 32, 1 << 62  # bounds of turn numbers
_MEMORY_MODES = ("", *quotas.MEMORY_MODES)  # by number
_BYPASSING_LIBRARIES = ("NVDEC", "NVENC", "OptiX", "functions of a newer CUDA")  # by bit


class BadPage(ValueError):
    """Error about a descriptor that is not a valid page."""


class Permit(NamedTuple):
    """Permit of the coordinator for a process: `struct gpushare_permit`."""

    turn: int = 0
    devices: int = 0
    deadline_ns: int = 0
    epoch: int = 0
    flags: int = 0

    @property
    def check(self) -> int:
        return checksum(self.turn, self.devices, self.deadline_ns, self.epoch | self.flags << 32)


class Turn(NamedTuple):
    """State of a process in its turn: `struct gpushare_turn`."""

    turn: int = 0
    entered_ns: int = 0
    closed_ns: int = 0
    left_ns: int = 0
    epoch: int = 0
    phase: int = OUT
    refused_entries: int = 0
    steps: int = 0

    @property
    def check(self) -> int:
        halves = (self.epoch | self.phase << 32, self.refused_entries | self.steps << 32)
        return checksum(self.turn, self.entered_ns, self.closed_ns, self.left_ns, *halves)


class Progress(NamedTuple):
    """Progress that the program of a process shows: `struct gpushare_progress`."""

    done: int
    total: int
    first: int
    began_ns: int
    changed_ns: int
    text: str


_Block = TypeVar("_Block", Permit, Turn)


def checksum(*words: int) -> int:
    """Return the checksum of 64-bit words for the field `check`, as `gpushare_check` in page.h does."""
    mix = 1
    for word in words:
        mix = (mix ^ word) * _CHECKSUM_FACTOR & UNKNOWN
        mix ^= mix >> 32
    return mix


def layout_of(header: str, part: str) -> tuple[str, dict[str, int]]:
    """Return a part of one of the shim's headers, for cffi, and the constants that the part defines.

    Raises FileNotFoundError if the header is not installed.
    """
    for folder in _HEADERS:
        if (path := folder / header).exists():
            break
    else:
        raise FileNotFoundError(
            f"{header} is in none of {', '.join(map(str, _HEADERS))}: the native parts are not built"
        )
    found = re.search(rf"/\* {part} begins \*/(.*)/\* {part} ends \*/", path.read_text(), re.DOTALL)
    if not found:
        raise ValueError(f"{path} has no {part} section")
    defined = re.findall(r"^#define\s+(\w+)\s+(\w+)", found[1], re.MULTILINE)
    return found[1], {name: int(value, 0) for name, value in defined}


@lru_cache(maxsize=1)
def layout() -> tuple[cffi.FFI, dict[str, int]]:
    """Return the structs of the page and the GPUSHARE_… constants by name. Raises FileNotFoundError."""
    structs, constants = layout_of("page.h", "layout")
    ffi = cffi.FFI()
    ffi.cdef(structs)
    return ffi, constants


def memory_mode(number: int) -> str:
    """Return the name of the mode in `report.memory_mode`, or an empty string if the process has not set it."""
    return _MEMORY_MODES[number] if 0 <= number < len(_MEMORY_MODES) else ""


def bypassing_libraries(bits: int) -> list[str]:
    """Return the names of the libraries in `report.bypassing_libraries`, whose work may pass the gate."""
    return [name for number, name in enumerate(_BYPASSING_LIBRARIES) if bits >> number & 1]


def is_resident_exact(mode: int, uses_managed_memory: int) -> bool:
    """Return True if a process's `report.resident` is exact; with unified memory it is an estimate."""
    return memory_mode(mode) in ("swap", "plain") and not uses_managed_memory


class SharedMemory:
    """Mapping of a sealed memfd with one of the structs. `view` has the struct's fields as attributes."""

    struct: str

    def __init__(self, descriptor: int) -> None:
        """Take ownership of `descriptor`.

        Raises BadPage unless the memfd is sealed against resizing, large enough, and of the right version.
        """
        ffi, constants = layout()
        struct = self.struct
        self.descriptor = descriptor
        try:
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
            # Without these seals the process could shrink the memfd, and the coordinator would die of SIGBUS.
            if seals & _SEALS != _SEALS or size < ffi.sizeof(f"struct {struct}"):
                raise BadPage(f"a {struct} of {size} bytes with seals {seals:#x}")
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as error:
            os.close(descriptor)
            raise BadPage(f"not a {struct}: {error}") from error
        self.inode = os.fstat(descriptor).st_ino
        self._base = ffi.from_buffer(self._map)
        self.view: Any = ffi.cast(f"struct {struct} *", self._base)
        magic, version = ffi.cast("uint32_t *", self._base)[0:2]
        if (magic, version) != (constants["GPUSHARE_PAGE_MAGIC"], constants["GPUSHARE_PAGE_VERSION"]):
            self.close()
            raise BadPage(f"not a {struct} of this version: magic {magic:#x}, version {version}")

    def close(self) -> None:
        if self.descriptor < 0:
            return
        self.view = None
        layout()[0].release(self._base)
        self._map.close()
        os.close(self.descriptor)
        self.descriptor = -1


class Page(SharedMemory):
    """Page of one process."""

    struct = "gpushare_page"

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.control: Any = self.view.control
        self.report: Any = self.view.report

    def close(self) -> None:
        self.control = self.report = None
        super().close()

    def values(self) -> dict[str, dict[str, int]]:
        """Return the present value of every field of every block.

        Fields of structs and elements of arrays are named `permit_epoch`, `drains_0`, `devices_0_resident` and so on.
        """
        ffi, _ = layout()
        return {name: _values(ffi, getattr(self.view, name)) for name in ("header", "control", "report")}

    def write_permit(self, permit: Permit) -> None:
        """Store a permit with its check; the caller rings the doorbell."""
        _store(self.control.permit, permit)

    def write_turn(self, turn: Turn) -> None:
        _store(self.report.turn, turn)

    def read_turn(self) -> Turn | None:
        """Return the state of the process in its turn, or None if the process is writing it at this moment."""
        return _load(self.report.turn, Turn)

    def read_progress(self) -> Progress | None:
        """Return the progress that the program shows, or None if the program shows none."""
        found = self.report.progress
        if not found.began_ns:
            return None
        text = b"".join(word.to_bytes(8, sys.byteorder) for word in found.text).split(b"\0")[0]
        return Progress(
            found.done, found.total, found.first, found.began_ns, found.changed_ns, text.decode("utf-8", "replace")
        )

    def interrupt(self) -> None:
        """Interrupt the calls that wait at the gate; the caller rings the doorbell."""
        self.control.interrupt_seq = (self.control.interrupt_seq + 1) & 0xFFFFFFFF


class ClientPage(SharedMemory):
    """Page that the processes of one client share.

    `devices` has the table's UUIDs, by their bits in a permit.
    The table is read once, because a process may write any value there.
    """

    struct = "gpushare_client"

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.devices = self.table()

    def clear_slot(self, slot: int) -> None:
        """Clear the slot of a process that has ended, so that its memory and its turn no longer count."""
        self.view.slots[slot] = layout()[0].new("struct gpushare_slot *")[0]

    def add_device(self, uuid: str) -> None:
        """Append a device to the table, unless the table has it. Raises BadPage if the table is full."""
        if uuid in self.devices:
            return
        _, constants = layout()
        number, name = len(self.devices), uuid.encode()
        if number == constants["GPUSHARE_DEVICES"] or len(name) >= constants["GPUSHARE_UUID_BYTES"]:
            raise BadPage(f"no room in the table of devices for {uuid}: it has {number} devices")
        self.view.devices[number] = name
        self.view.device_count = number + 1
        self.devices.append(uuid)

    def bits(self, devices: Iterable[str]) -> int:
        """Return the bit mask of these devices, as in a permit."""
        return sum(1 << self.devices.index(uuid) for uuid in devices)

    def table(self) -> list[str]:
        """Read the UUIDs in the table."""
        ffi, constants = layout()
        count = min(self.view.device_count, constants["GPUSHARE_DEVICES"])
        size = constants["GPUSHARE_UUID_BYTES"]
        return [ffi.string(self.view.devices[i], size).decode("utf-8", "replace") for i in range(count)]


def _store(block: Any, values: Permit | Turn) -> None:
    for name, value in zip(values._fields, values, strict=True):
        setattr(block, name, value)
    block.check = values.check


def _load(block: Any, kind: type[_Block]) -> _Block | None:
    """Return the values of a block, or None if its check is wrong. A block of zeros was never written and is valid."""
    values, check = kind(*(getattr(block, name) for name in kind._fields)), block.check
    return values if check == values.check or not (check or any(values)) else None


def _values(ffi: cffi.FFI, block: Any, prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for field, about in ffi.typeof(block).fields:
        value = getattr(block, field)
        if about.type.kind == "array" and about.type.item.kind == "struct":
            for number, element in enumerate(value):
                found |= _values(ffi, element, f"{prefix}{field}_{number}_")
        elif about.type.kind == "array":
            found |= {f"{prefix}{field}_{number}": int(element) for number, element in enumerate(value)}
        elif about.type.kind == "struct":
            found |= _values(ffi, value, f"{prefix}{field}_")
        else:
            found[prefix + field] = int(value)
    return found
