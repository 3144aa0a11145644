"""Runner of `jupyter gpushare …` in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys


def run_command(*arguments: str, timeout: float = 60, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command with this process's environment and `variables`."""
    argv = [sys.executable, "-m", "jupyter_gpushare", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env={**os.environ, **variables})
