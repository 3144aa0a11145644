"""Each target of the Makefile has commands that a shell can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = ["demo", "lab", "test", "lint", "jest", "ui", "pytest", "sanitize", "fuzz", "faults", "stress", "chaos"]
TARGETS += ["test-gpu", "format", "pictures", "env", "configuration", "native", "wheel", "clean", "distclean", "help"]


@pytest.mark.parametrize("target", TARGETS)
def test_its_commands_can_be_read(target: str) -> None:
    commands = subprocess.run(["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert commands.returncode == 0 and commands.stdout, commands.stderr
    # One command a shell, as make runs them: a quote that is not closed must not be closed by the next one's.
    for command in commands.stdout.replace("\\\n", " ").splitlines():
        read = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert not read.returncode, read.stderr


def test_every_target_is_tried() -> None:
    (phony,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    parts = {name for name in phony.split()[1:] if name.startswith("lint-")} | {"labextension", "sanitize-short"}
    assert set(TARGETS) == set(phony.split()[1:]) - parts
