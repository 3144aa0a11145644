"""Corruption of pages by hostile processes, and pages that change with each read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from random import Random
from typing import Any
from unittest import mock

from jupyter_gpushare.wire import page as pages

_VALUES = [0, 1, 2, 3, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, 1 << 50, (1 << 62) - 1, (1 << 63), (1 << 64) - 1]
CHANGING_PAGE_PID = 0xF1CC1E  # the pid in the header of a page that changes while it is read


def corrupt_page(random: Random, descriptor: int, *structs: str) -> None:
    """Change a few fields of the structs, or a few bytes, in the memory of a descriptor."""
    _, constants = pages.layout()
    if random.random() < 0.5 and "gpushare_page" in structs:
        _report(random, descriptor)
    for _ in range(random.choice((1, 3, 30))):
        if random.random() < 0.2:
            at, data = random.randrange(constants["GPUSHARE_PAGE_BYTES"]), random.randbytes(8)
        else:
            at, size = random.choice(random.choice(FIELDS[random.choice(structs)]))
            data = (random.choice(_VALUES) & ((1 << (8 * size)) - 1)).to_bytes(size, "little")
        os.pwrite(descriptor, data[: constants["GPUSHARE_PAGE_BYTES"] - at], at)


def _report(random: Random, descriptor: int) -> None:
    """Write a complete report of a turn, perhaps of the permitted one."""
    with contextlib.suppress(pages.BadPage), contextlib.closing(pages.Page(os.dup(descriptor))) as page:
        turn, epoch = page.control.permit.turn, page.control.permit.epoch
        number = random.choice((turn, turn, turn, *_VALUES))
        times = [random.choice(_VALUES) for _ in range(3)]
        page.write_turn(pages.Turn(number, *times, epoch, random.choice((0, 1, 2, 3, 4, 7)), random.randrange(9)))


def _fields(struct: str, base: int = 0) -> list[list[tuple[int, int]]]:
    """Return, for every field of a struct of `page.h`, (offset, size) in bytes of each of its elements."""
    ffi, _ = pages.layout()
    found = []
    for _, declared in ffi.typeof(struct).fields:
        at, kind = base + declared.offset, declared.type
        if kind.kind == "struct":
            found += _fields(kind.cname, at)
        elif kind.kind == "array":
            size = ffi.sizeof(kind.item)
            found.append([(at + number * size, size) for number in range(kind.length)])
        else:
            found.append([(at, ffi.sizeof(kind))])
    return found


FIELDS = {name: _fields(f"struct {name}") for name in ("gpushare_page", "gpushare_client")}


class ChangingPage:
    """Block of a page in which each read of a field returns another value, as if the process wrote all the time."""

    def __init__(self, block: Any, random: Random) -> None:
        object.__setattr__(self, "_block", block)
        object.__setattr__(self, "_random", random)
        ffi, _ = pages.layout()
        types = {name: declared.type for name, declared in ffi.typeof(block).fields}
        arrays = {name: kind.length for name, kind in types.items() if kind.kind == "array"}
        bits = {name: 8 * ffi.sizeof(kind.item if name in arrays else kind) for name, kind in types.items()}
        object.__setattr__(self, "_bits", bits)
        object.__setattr__(self, "_arrays", arrays)
        object.__setattr__(self, "_structs", {name for name, kind in types.items() if kind.kind == "struct"})
        rows = {name for name in arrays if types[name].item.kind == "struct"}
        object.__setattr__(self, "_rows", rows)

    def __getattr__(self, name: str) -> Any:
        def value() -> int:
            return int(self._random.choice(_VALUES) & ((1 << self._bits[name]) - 1))

        if name in self._structs:  # sometimes consistent, as written
            block = getattr(self._block, name)
            return block if self._random.random() < 0.5 else ChangingPage(block, self._random)
        if name in self._rows:
            return [ChangingPage(row, self._random) for row in getattr(self._block, name)]
        return [value() for _ in range(self._arrays[name])] if name in self._arrays else value()

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._block, name, value)


@contextlib.contextmanager
def changing_pages(random: Random) -> Iterator[None]:
    """Make pages whose header has the pid CHANGING_PAGE_PID change with each read by the coordinator."""
    opened = pages.Page.__init__

    def open_page(page: pages.Page, descriptor: int) -> None:
        opened(page, descriptor)
        if page.view.header.pid == CHANGING_PAGE_PID:
            page.control, page.report = ChangingPage(page.control, random), ChangingPage(page.report, random)

    with mock.patch.object(pages.Page, "__init__", open_page):
        yield
