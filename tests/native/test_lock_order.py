"""Tests of the order of the shim's locks, which `native/shim/base/base.h` lists."""

from __future__ import annotations

import re

import pytest

from .api_tables import SHIM
from .lock_nesting import Lock, Sources

SOURCES = Sources({str(path.relative_to(SHIM)): path.read_text() for path in SHIM.rglob("*.[ch]")})
OUTER, INNER = "pthread_mutex_lock(&outer);", "pthread_mutex_lock(&inner);"
UNLOCK = "pthread_mutex_unlock(&outer);"


def listed_locks() -> list[Lock]:
    lines = re.findall(r"^ \* - (\w+) +(\S+\.c)\b", (SHIM / "base" / "base.h").read_text(), re.MULTILINE)
    return [(file, name) for name, file in lines]


def pairs(**functions: str) -> list[tuple[str, str]]:
    """Return the names of nested locks in a file with these functions."""
    text = "".join(f"static void {name}(void (*done)(void)) {{\n{body}\n}}\n" for name, body in functions.items())
    return sorted((outer, inner) for (_, outer), (_, inner) in Sources({"file.c": text}).nesting)


def test_every_lock_has_its_place() -> None:
    assert len(set(listed_locks())) == len(listed_locks())
    assert set(listed_locks()) == SOURCES.locks


def test_a_thread_that_holds_a_lock_waits_for_a_lower_one_only() -> None:
    places = {lock: place for place, lock in enumerate(listed_locks())}
    wrong = [
        f"{where} takes {inner} while {outer} may be held"
        for (outer, inner), where in SOURCES.nesting.items()
        if places[inner] <= places[outer]
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (("driver/captures.c", "queries"), ("gate/streams.c", "lock")),  # by queries_lock()
        (("memory/freed/deferred_free.c", "freeing"), ("memory/transfers/transfer_streams.c", "residency_lock")),
        (("memory/freed/deferred_free.c", "freeing"), ("driver/captures.c", "queries")),  # by a table of functions
    ],
)
def test_nesting_is_seen_in_the_sources(outer: Lock, inner: Lock) -> None:
    assert (outer, inner) in SOURCES.nesting


def test_nesting_is_found() -> None:
    assert pairs(f=OUTER + INNER) == [("outer", "inner")]
    assert pairs(f=OUTER + UNLOCK + INNER) == []
    assert pairs(f=OUTER + "g();", g=INNER) == [("outer", "inner")]
    assert pairs(f=OUTER + "g(h);", g="done();", h=INNER) == [("outer", "inner")]
    assert pairs(f=OUTER + "(x ? g : h)();", g="", h=INNER) == [("outer", "inner")]
    assert pairs(f=OUTER + "start_helper_thread(g);", g=INNER) == []
    assert pairs(f="g();" + INNER, g=OUTER) == [("outer", "inner")]
    assert pairs(f="g();" + INNER, g=OUTER + UNLOCK) == []
    assert pairs(f=OUTER + f"if (x) {{ {UNLOCK} return; }}" + INNER + UNLOCK) == [("outer", "inner")]
    assert pairs(f=OUTER + "g();" + UNLOCK, g=UNLOCK + INNER + "pthread_mutex_unlock(&inner);" + OUTER) == []
    assert pairs(f=OUTER + OUTER) == [("outer", "outer")]
