"""The rule of turns as the shim has it, `agent_step.c` and `turn_lock.c`, compiled and called through cffi."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import cffi

from ..builds import cached

SHIM = Path(__file__).resolve().parent.parent.parent / "native" / "shim"
SOURCES = [SHIM / name for name in ("agent_step.c", "turn_lock.c", "agent_step.h", "turn_lock.h", "page.h")]
LOCKS = """
uint64_t check(const void *words, int count);
bool turn_has_others(int file, uint64_t turn);
int turn_enter(const int *files, int count, uint64_t turn, bool join);
void turn_leave(const int *files, int count, uint64_t turn);
void turn_show_waiting(int file, bool waits);
"""
CHECK = '#include "page.h"\nuint64_t check(const void *words, int count) { return gpushare_check(words, count); }\n'
FLAGS = ("-std=gnu11", f"-I{SHIM}", "-O2", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror")


def _part(header: str, begin: str, end: str) -> str:
    found = re.search(rf"/\* {begin} \*/(.*)/\* {end} \*/", (SHIM / header).read_text(), re.DOTALL)
    assert found, f"{header} has no part between {begin!r} and {end!r}"
    return found[1]


_LAYOUT = _part("page.h", "layout begins", "layout ends") + _part(
    "agent_step.h", "agent layout begins", "agent layout ends"
)
ffi = cffi.FFI()
ffi.cdef(_LAYOUT + LOCKS)

CONSTANTS = {name: int(value, 0) for name, value in re.findall(r"^#define\s+(\w+)\s+(\w+)", _LAYOUT, re.MULTILINE)}
OUT, IN, CLOSING, STEP, LEAVING = range(5)
PHASES = ("out", "in", "closing", "step", "leaving")
PERMIT_WORDS, TURN_WORDS = 5, 6


@cache
def native(agent_mistake: int = 0, turn_mistake: int = 0) -> Any:
    """The functions of both files, built with the planted mistakes of these numbers; 0: none."""
    name = f"rule-{agent_mistake}-{turn_mistake}.so"
    mistakes = [f"-DAGENT_MISTAKE={agent_mistake}", f"-DTURN_MISTAKE={turn_mistake}"]

    def commands(out: Path) -> list[list[str]]:
        source = out.with_suffix(".c")
        return [
            ["sh", "-c", 'printf %s "$1" > "$2"', "sh", CHECK, str(source)],
            ["cc", *FLAGS, *mistakes, *map(str, SOURCES[:2]), str(source), "-o", str(out)],
        ]

    return ffi.dlopen(str(cached(name, SOURCES, commands)))


def check_of(struct: Any, words: int) -> int:
    """The `check` that belongs to the words of a permit or a turn."""
    return int(native().check(ffi.addressof(struct), words))
