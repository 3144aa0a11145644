"""Test of the machine of these tests: a machine that cannot be made leaves no files and no open pipes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from ..hub import machine as machines


def test_machine_that_cannot_be_made_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if problem := machines.problem():
        pytest.skip(problem)
    folder = tmp_path / "machine"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "mkdtemp", lambda **_: str(folder))
    monkeypatch.setattr(machines, "_first", lambda _: ["echo no mount >&2", "exit 1"])
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no mount"), machines.made("ada"):
        pass
    assert not folder.exists()
    assert os.listdir("/proc/self/fd") == before
