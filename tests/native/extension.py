"""Build of `raising.c`, a Python extension that stands for libraries such as torch."""

from __future__ import annotations

import functools
import subprocess
import sys
import sysconfig
from pathlib import Path

from ..support.compile_cache import cached

SOURCE = Path(__file__).resolve().parent / "raising.c"
FLAGS = "-shared -fPIC -O2 -Wall -Wextra"


@functools.cache
def include_folder(python: str = sys.executable) -> Path | None:
    """Return the folder of a Python's headers, or None if that Python does not run here."""
    if python == sys.executable:
        return Path(sysconfig.get_path("include"))
    code = "import sysconfig; print(sysconfig.get_path('include'))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def built_extension(include: Path) -> Path:
    """Return the module `raising`, built for the Python with these headers."""
    command = ["cc", *FLAGS.split(), f"-I{include}", str(SOURCE)]
    return cached("raising.so", [SOURCE], lambda out: [[*command, "-o", str(out)]])
