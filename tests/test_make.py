"""Test of the Makefile: the commands of its targets are valid in a shell."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TARGETS = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("target", " ".join(TARGETS).split())
def test_make_targets_have_valid_shell_commands(target: str) -> None:
    commands = subprocess.run(["make", "--no-print-directory", "-n", target], cwd=ROOT, capture_output=True, text=True)
    assert commands.returncode == 0 and commands.stdout, commands.stderr
    # As make does, each command gets a shell of its own, so that it cannot close a quote of another command.
    for command in commands.stdout.replace("\\\n", " ").splitlines():
        read = subprocess.run(["bash", "-n", "-c", command], capture_output=True, text=True)
        assert not read.returncode, read.stderr
