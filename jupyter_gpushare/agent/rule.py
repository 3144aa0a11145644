"""Agent rule and turn locks of the shim, `agent_step.c` and `turn_lock.c`, compiled and called through cffi."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import cffi

from ..wire import page as pages

_LOCKS = """
bool turn_has_others(int file, uint64_t turn);
int turn_enter(const int *files, int count, uint64_t turn, bool join);
void turn_leave(const int *files, int count, uint64_t turn);
void turn_show_waiting(int file, bool waits);
"""
_LAYOUT, _AGENT_CONSTANTS = pages.layout_of("agent_step.h", "agent layout")

ffi = cffi.FFI()
ffi.include(pages.layout()[0])
ffi.cdef(_LAYOUT + _LOCKS)

CONSTANTS = pages.layout()[1] | _AGENT_CONSTANTS
_ACTS = ("ENTER", "JOIN", "BEGIN", "CLOSE", "DRAINED", "LEAVE", "RING", "WAKE", "CHANGED", "POLL")
ACTS = {name: CONSTANTS[f"AGENT_{name}"] for name in _ACTS}
ENTER, JOIN, BEGIN, CLOSE, DRAINED, LEAVE, RING, WAKE, CHANGED, POLL = ACTS.values()
NOT_TRIED, REFUSED, ENTERED, ENTERED_FIRST = range(4)
NOT_POLLED, BUSY, QUIET = range(3)
CLOSED_GATE, OPEN_GATE, STEP_GATE = range(3)
PHASES = ("out", "in", "closing", "step", "leaving")
PERMIT_WORDS, TURN_WORDS = 4, 6


@cache
def native() -> Any:
    """Return the functions of both C files. Raises OSError if the native parts are not built."""
    return load(Path(__file__).resolve().parent.parent / "native" / "libagent.so")


def load(path: Path) -> Any:
    """Return the functions of a library that was built from both C files."""
    return ffi.dlopen(str(path))


def check_of(struct: Any, words: int) -> int:
    """Return the checksum that belongs in the field `check` of a permit or a turn."""
    return pages.checksum(*ffi.cast("uint64_t *", ffi.addressof(struct))[0:words])
