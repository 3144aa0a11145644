"""The wheel and the sdist of this tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LABEXTENSION = ROOT / "jupyter_gpushare/labextension/static/style.js"


def build_package(target: str, folder: Path) -> Path:
    """Runs the build backend; native parts and labextension of this tree are reused where up to date."""
    if not LABEXTENSION.exists() and shutil.which("node") is None:
        pytest.skip("needs Node.js, or a labextension that is built already")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = os.environ | {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    if LABEXTENSION.exists():
        environment["HATCH_JUPYTER_BUILDER_SKIP_NPM"] = "1"
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (archive,) = folder.iterdir()
    return archive
