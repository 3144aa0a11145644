"""What `jupyter gpushare bench` accepts. The figures themselves are no test's business."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["gate", "--rounds", "-1"], "0 to 100000"),
        (["gate", "--threads", "0"], "1 to 64"),
        (["gate", "--threads", "two"], "1 to 64"),
        (["speed"], "handoff"),
    ],
)
def test_nonsense_is_refused_with_what_is_allowed(words: list[str], allowed: str) -> None:
    argv = [sys.executable, "-m", "jupyter_gpushare", "bench", *words]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert ran.returncode == 2
    assert words[-1] in ran.stderr and allowed in ran.stderr
    assert "Traceback" not in ran.stderr
