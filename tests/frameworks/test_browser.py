"""Test of notebooks with PyTorch in a browser (labextension/ui-tests/pytorch.test.mjs), with the shipped settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ..driver_facts.harness import ROOT
from .conftest import write_kernelspec

CHROMIUM = Path(os.environ.get("CHROMIUM") or "/usr/bin/chromium")
COMMAND = ["node", "ui-tests/with-server.mjs", "ui-tests/pytorch.test.mjs"]


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_notebooks_share_the_device(tmp_path: Path, mode: str) -> None:
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM} (set CHROMIUM)")
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    env = os.environ | {
        "GPUSHARE_UI_TORCH": write_kernelspec(kernels, mode),
        "GPUSHARE_SIM_MEMORY": "1GiB",
        "JUPYTER_PATH": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(COMMAND, cwd=ROOT / "labextension", env=env, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\S+ pass 2$", done.stdout, re.MULTILINE), done.stdout
