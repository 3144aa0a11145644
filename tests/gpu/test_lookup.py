"""Test of the lookup of each row of hooks.def on the driver, both ways, while a rival takes turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..native.api_tables import Row, rows
from ..system.system_host import GpuProgram
from .card_host import MODES, CardHost

SHIM = "libgpushare.so"
LOOKUP_CODE = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", c_void_p), ("name", ctypes.c_char_p), ("address", c_void_p)]
dladdr = ctypes.CDLL(None).dladdr
def home(address):
    info = Info()
    if not address or not dladdr(c_void_p(address), byref(info)):
        return None
    return [info.file.decode().rpartition("/")[2], (info.name or b"").decode()]
def by_dlsym(symbol):
    try:
        return home(ctypes.cast(getattr(cuda.library, symbol), c_void_p).value)
    except AttributeError:
        return None
def by_version(base, version, flags):
    found, status = c_void_p(), ctypes.c_int()
    code = cuda.cuGetProcAddress_v2(base.encode(), byref(found), version, c_uint64(flags), byref(status))
    return home(found.value) if code == 0 and status.value == 0 else None
"""


def lookups(program: GpuProgram, table: list[Row]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the library and the name that each lookup of a row leads to, by `dlsym` and by `cuGetProcAddress`."""
    program.run(LOOKUP_CODE)
    symbols = [symbol for row in table for symbol in row.symbols()]
    cases = [(row.base, row.since, flags) for row in table for flags in ((0,) if row.twin == "NONE" else (0, 2))]
    linked = program.run(f"[by_dlsym(symbol) for symbol in {symbols}]")
    versioned = program.run(f"[by_version(*case) for case in {cases}]")
    names = [" ".join(map(str, case)) for case in cases]
    return dict(zip(symbols, linked, strict=True)), dict(zip(names, versioned, strict=True))


def test_each_row_is_hooked_by_both_lookups(host: CardHost, record_property: Callable[[str, object], None]) -> None:
    """A lookup in a client leads to the shim's function of the same form that the lookup without the shim finds."""
    host.begin(MODES[0])
    table = [row for row in rows() if row.kind != "USED"]
    bare, bare_versions = lookups(host.card_program(""), table)
    client = host.card_program("one")
    rival = host.start_rival(MODES[0], size=0)
    found, versions = lookups(client, table)
    there = [symbol for symbol, place in bare.items() if place]
    assert {symbol: found[symbol] for symbol in there} == {symbol: [SHIM, symbol] for symbol in there}
    known = [name for name, place in bare_versions.items() if place]
    assert {name: place for name in known if (place := versions[name]) is None or place[0] != SHIM} == {}
    # A driver may return an internal function without a name of its own.
    named = {name: bare_versions[name][1] for name in known if bare_versions[name][1] in there}
    assert {name: versions[name][1] for name in named} == named
    host.stop_rival(rival, size=0)
    record_property("rows", len(table))
    record_property("hooked_by_dlsym", len(there))
    record_property("hooked_by_cuGetProcAddress", len(known))
    record_property("missing_in_the_driver", [symbol for symbol, place in bare.items() if not place])
