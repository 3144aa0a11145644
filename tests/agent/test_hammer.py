"""Tests of the turn lock with real processes, by the program of `hammer.c`.

A device has one turn at a time and is free after all processes have left; two mutants of the lock are detected.
"""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from ..support import tier
from ..support.compile_cache import cached
from ..support.mutant_rule import SHIM

SECONDS = int(os.environ.get("GPUSHARE_TEST_HAMMER", tier.strength("1", "20")))
ATTEMPTS = 15  # of which the first nearly always finds the mutant
SOURCE = Path(__file__).with_name("hammer.c")
NO_CHECK_FOR_OTHERS, NO_UNDO = 1, 2


@cache
def built(mutant: int) -> Path:
    sources = [SOURCE, SHIM / "agent" / "turn_lock.c"]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}", f"-DTURN_LOCK_MUTANT={mutant}"]
    headers = [SHIM / "agent" / "turn_lock.h", SHIM / "base" / "page.h"]
    return cached(
        f"hammer-{mutant}",
        [*sources, *headers],
        lambda out: [["cc", *flags, *map(str, sources), "-o", str(out)]],
    )


def hammer(folder: Path, mutant: int = 0) -> dict[str, int]:
    command = [built(mutant), folder / "GPU-0.lock", folder / "GPU-1.lock", str(SECONDS)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS + 60)
    return dict(json.loads(found.stdout))


def test_hammer_work_of_two_turns_never_overlaps(tmp_path: Path) -> None:
    found = hammer(tmp_path)
    assert found["violations"] == 0, found
    assert found["free"], found
    assert min(found["entered"], found["kills"], found["stops"]) > 0, found


def test_hammer_lock_that_ignores_other_turns_is_detected(tmp_path: Path) -> None:
    assert any(hammer(tmp_path, NO_CHECK_FOR_OTHERS)["violations"] for _ in range(ATTEMPTS))


def test_hammer_refused_try_without_undo_is_detected(tmp_path: Path) -> None:
    assert not all(hammer(tmp_path, NO_UNDO)["free"] for _ in range(ATTEMPTS))
