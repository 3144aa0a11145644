"""Tests of the sanitizers: under `make sanitize`, a planted error in a preloaded library is reported."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ..support import sanitizers
from .conftest import NativeHost

THREADS = "pthread_t other; pthread_create(&other, 0, count, 0); count(0); pthread_join(other, 0);"
PLANTED_ERRORS = [
    ("address", "heap-use-after-free", "volatile char *made = malloc(8); free((void *)made); made[0] = 1;"),
    ("address", "ILL", "volatile int shift = 40; counted = 1 << shift;"),
    ("thread", "data race", THREADS),
]


@pytest.mark.parametrize(("kind", "word", "code"), PLANTED_ERRORS)
def test_planted_error_is_reported(machine: NativeHost, tmp_path: Path, kind: str, word: str, code: str) -> None:
    if kind != sanitizers.KIND:
        pytest.skip(f"the libraries are not built with the {kind} sanitizer")
    source, library = tmp_path / "planted.c", tmp_path / "planted.so"
    source.write_text(
        f"""
#include <pthread.h>
#include <stdlib.h>
volatile long counted;
void *count(void *unused) {{ for (int i = 0; i < 10000; i++) counted++; return unused; }}
void plant(void) {{ {code} }}
"""
    )
    for command in sanitizers.compile_commands(library, [source], "-shared -fPIC -g -pthread", ""):
        subprocess.run(command, check=True)
    client = machine.client()
    client.start(f"ctypes.CDLL({str(library)!r}).plant()")
    client.end()
    assert word in sanitizers.take_reports()
