"""What tests build, kept for the next run. Of several processes that need the same, one builds it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str, sources: list[Path], commands: Callable[[Path], list[list[str]]]) -> Path:
    """What `commands(output)` make of `sources`: a file or folder of that name in a folder that depends on both."""
    digest = hashlib.sha256(repr(commands(Path("out"))).encode())
    for path in sources:
        digest.update(path.name.encode() + path.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"gpushare-tests-{os.getuid()}-{digest.hexdigest()[:16]}"
    folder.mkdir(mode=0o700, exist_ok=True)
    made = folder / name
    with (folder / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            building = folder / f"building.{os.getpid()}"
            shutil.rmtree(building, ignore_errors=True)  # of one that was killed
            for command in commands(building):
                subprocess.run(command, check=True)
            building.rename(made)
    return made
