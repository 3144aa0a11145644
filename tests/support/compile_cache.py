"""Cache of the files that tests build, also for later runs. If several processes need a file, one builds it."""

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
    """Return the file or folder that `commands(output)` make from `sources`, with this name.

    The folder in the cache depends on the commands and the sources.
    """
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
            shutil.rmtree(building, ignore_errors=True)  # of a build that was killed
            for command in commands(building):
                subprocess.run(command, check=True)
            building.rename(made)
    return made
