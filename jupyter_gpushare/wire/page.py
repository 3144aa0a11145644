"""The page, seen from Python: the structs of `native/shim/base/page.h`, read by cffi, over a mapped memfd."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
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
FIRST_TURN, LAST_TURN = 1 << 32, 1 << 62  # numbers of turns lie between
_MEMORY_MODES = ("", *quotas.MEMORY_MODES)  # by number


class BadPage(ValueError):
    """A descriptor that a process offered as its page and that is not one."""


class Permit(NamedTuple):
    """What the coordinator allows a process: `struct gpushare_permit`."""

    turn: int = 0
    devices: int = 0
    deadline_ns: int = 0
    epoch: int = 0
    flags: int = 0

    @property
    def check(self) -> int:
        return checksum(self.turn, self.devices, self.deadline_ns, self.epoch | self.flags << 32)


class Turn(NamedTuple):
    """Where a process stands with its turn: `struct gpushare_turn`."""

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


_Block = TypeVar("_Block", Permit, Turn)


def checksum(*words: int) -> int:
    """Return the mix of 64-bit words that `check` holds: `gpushare_check` in page.h."""
    mix = 1
    for word in words:
        mix = (mix ^ word) * _CHECKSUM_FACTOR & UNKNOWN
        mix ^= mix >> 32
    return mix


def layout_of(header: str, part: str) -> tuple[str, dict[str, int]]:
    """Return a part of one of the shim's headers, for cffi, and the constants that it defines.

    Raises FileNotFoundError where the header is not installed.
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
    """Return the structs of the page, and the GPUSHARE_… constants by name. Raises FileNotFoundError as `layout_of`."""
    structs, constants = layout_of("page.h", "layout")
    ffi = cffi.FFI()
    ffi.cdef(structs)
    return ffi, constants


def memory_mode(number: int) -> str:
    """Return the name of `report.memory_mode`, or an empty string where the process has not set it."""
    return _MEMORY_MODES[number] if 0 <= number < len(_MEMORY_MODES) else ""


def is_resident_exact(mode: int, uses_managed_memory: int) -> bool:
    """Return True if a process's `report.resident` is exact; with unified memory it is an estimate."""
    return memory_mode(mode) in ("swap", "plain") and not uses_managed_memory


class SharedMemory:
    """A sealed memfd of one of our structs, mapped. `view` has the struct's fields as attributes."""

    struct: str

    def __init__(self, descriptor: int) -> None:
        """Take ownership of `descriptor`.

        Raises BadPage unless it is sealed against resizing, large enough, and of our version.
        """
        ffi, constants = layout()
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
        magic, version = ffi.cast("uint32_t *", self._base)[0:2]
        if (magic, version) != (constants["GPUSHARE_PAGE_MAGIC"], constants["GPUSHARE_PAGE_VERSION"]):
            self.close()
            raise BadPage(f"not a {struct} that this coordinator knows: magic {magic:#x}, version {version}")

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
        self.control: Any = self.view.control
        self.report: Any = self.view.report

    def close(self) -> None:
        self.control = self.report = None
        super().close()

    def values(self) -> dict[str, dict[str, int]]:
        """Return every field of every block at this moment.

        Fields of structs and elements of arrays are named `permit_epoch`, `drains_0` and so on.
        """
        ffi, _ = layout()
        return {name: _values(ffi, getattr(self.view, name)) for name in ("header", "control", "report")}

    def write_permit(self, permit: Permit) -> None:
        """Store a permit with its check; the doorbell has to follow."""
        _store(self.control.permit, permit)

    def write_turn(self, turn: Turn) -> None:
        _store(self.report.turn, turn)

    def read_turn(self) -> Turn | None:
        """Return where the process stands with its turn, or None if it is writing that at this moment."""
        return _load(self.report.turn, Turn)

    def interrupt(self) -> None:
        """Interrupt the calls that wait at the gate; the doorbell has to follow."""
        self.control.interrupt_seq = (self.control.interrupt_seq + 1) & 0xFFFFFFFF


class ClientPage(SharedMemory):
    """The page that the processes of one client share.

    `devices`: the table's UUIDs, by their bits in a permit; read once, because a process may write anything there.
    """

    struct = "gpushare_client"

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self.devices = self.table()

    def clear_slot(self, slot: int) -> None:
        """Clear the slot of a process that has ended: its memory no longer counts, and its turn is over."""
        self.view.slots[slot] = layout()[0].new("struct gpushare_slot *")[0]

    def add_device(self, uuid: str) -> None:
        """Append a device to the table, unless it is there. Raises BadPage if it has no room."""
        if uuid in self.devices:
            return
        _, constants = layout()
        number, name = len(self.devices), uuid.encode()
        if number == constants["GPUSHARE_DEVICES"] or len(name) >= constants["GPUSHARE_UUID_BYTES"]:
            raise BadPage(f"no room for device {uuid} beside {number} others")
        self.view.devices[number] = name
        self.view.device_count = number + 1
        self.devices.append(uuid)

    def bits(self, devices: Iterable[str]) -> int:
        """Return the bits of these devices, as permits have them."""
        return sum(1 << self.devices.index(uuid) for uuid in devices)

    def table(self) -> list[str]:
        """Return the UUIDs that the table has at this moment."""
        ffi, constants = layout()
        count = min(self.view.device_count, constants["GPUSHARE_DEVICES"])
        size = constants["GPUSHARE_UUID_BYTES"]
        return [ffi.string(self.view.devices[i], size).decode("utf-8", "replace") for i in range(count)]


def _store(block: Any, values: Permit | Turn) -> None:
    for name, value in zip(values._fields, values, strict=True):
        setattr(block, name, value)
    block.check = values.check


def _load(block: Any, kind: type[_Block]) -> _Block | None:
    """Return the values of a block, or None if its check is wrong. A block without a check was never written."""
    values, check = kind(*(getattr(block, name) for name in kind._fields)), block.check
    return values if check == values.check or not (check or any(values)) else None


def _values(ffi: cffi.FFI, block: Any, prefix: str = "") -> dict[str, int]:
    found: dict[str, int] = {}
    for field, about in ffi.typeof(block).fields:
        value = getattr(block, field)
        if about.type.kind == "array":
            found |= {f"{prefix}{field}_{number}": int(element) for number, element in enumerate(value)}
        elif about.type.kind == "struct":
            found |= _values(ffi, value, f"{prefix}{field}_")
        else:
            found[prefix + field] = int(value)
    return found
