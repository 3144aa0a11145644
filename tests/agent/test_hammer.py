"""The turn lock under real processes: one turn at a time on a device, and a free device when all have left."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

from ..support import tier
from ..support.compile_cache import cached
from ..support.rule import SHIM

SECONDS = int(os.environ.get("GPUSHARE_TEST_HAMMER", tier.strength("1", "20")))
ATTEMPTS = 15  # nearly always the first finds it
SOURCE = Path(__file__).with_name("hammer.c")
NO_CHECK_FOR_OTHERS, NO_UNDO = 1, 2


@cache
def built(mistake: int) -> Path:
    sources = [SOURCE, SHIM / "agent" / "turn_lock.c"]
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{SHIM}", f"-DTURN_LOCK_MUTANT={mistake}"]
    headers = [SHIM / "agent" / "turn_lock.h", SHIM / "base" / "page.h"]
    return cached(
        f"hammer-{mistake}",
        [*sources, *headers],
        lambda out: [["cc", *flags, *map(str, sources), "-o", str(out)]],
    )


def hammer(folder: Path, mistake: int = 0) -> dict[str, int]:
    command = [built(mistake), folder / "GPU-0.lock", folder / "GPU-1.lock", str(SECONDS)]
    found = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS + 60)
    return dict(json.loads(found.stdout))


def test_two_turns_are_never_at_work_on_a_device(tmp_path: Path) -> None:
    found = hammer(tmp_path)
    assert found["violations"] == 0, found
    assert found["free"], found
    assert min(found["entered"], found["kills"], found["stops"]) > 0, found


def test_it_finds_a_lock_that_does_not_look_for_other_turns(tmp_path: Path) -> None:
    assert any(hammer(tmp_path, NO_CHECK_FOR_OTHERS)["violations"] for _ in range(ATTEMPTS))


def test_it_finds_a_refused_try_that_is_not_undone(tmp_path: Path) -> None:
    assert not all(hammer(tmp_path, NO_UNDO)["free"] for _ in range(ATTEMPTS))
