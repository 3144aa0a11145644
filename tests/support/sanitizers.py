"""Native parts under a sanitizer: `GPUSHARE_TEST_SANITIZE=address` (with undefined behaviour) or `thread`.

Tests of the shim and the simulated driver then build both with the sanitizer.
A test fails if a program of the test has a report (`tests/conftest.py`).
Python itself is not instrumented, so the sanitizer's libraries are preloaded before the shim.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

KIND = os.environ.get("GPUSHARE_TEST_SANITIZE", "")
FLAGS = {
    "": "",
    # Undefined behaviour raises a trap, which AddressSanitizer's library reports.
    # UBSan's own library would write to standard error only.
    "address": "-fsanitize=address,undefined -fsanitize-undefined-trap-on-error -Og",
    "thread": "-fsanitize=thread -O1",
}[KIND].split()
if KIND:
    FLAGS += ["-g1", "-fno-omit-frame-pointer", "-Wno-error"]
LIBRARIES = {"": [], "address": ["libasan.so"], "thread": ["libtsan.so"]}[KIND]

# Lookups and signal handlers are built without the sanitizer, because they run while the sanitizer starts.
UNSANITIZED_FILES = {"intercept.c", "sigint.c", "symbols.c"}


@cache
def report_folder() -> Path:
    """Return the folder of the reports, one file for each program."""
    folder = tempfile.mkdtemp(prefix="gpushare-sanitizer-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def take_reports() -> str:
    """Return the reports since the last call, and delete their files."""
    files = sorted(report_folder().iterdir()) if KIND else []
    texts = [path.read_text(errors="replace") for path in files]
    for path in files:
        path.unlink()
    return "\n".join(texts)


@cache
def preloaded_libraries() -> list[str]:
    """Return the libraries that must be preloaded first."""
    paths = []
    for name in LIBRARIES:
        answer = subprocess.run(["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
        paths.append(str(Path(answer.stdout.strip()).resolve(strict=True)))
    return paths


def preload(*more: str) -> dict[str, str]:
    """Return LD_PRELOAD with these libraries, and the sanitizer's settings.

    Leaks are not detected, because Python frees little memory at its end.
    """
    made = {"LD_PRELOAD": " ".join([*preloaded_libraries(), *more])} if KIND or more else {}
    if KIND:
        common = f"log_path={report_folder()}/report:exitcode=66"
        made["ASAN_OPTIONS"] = f"{common}:detect_leaks=0:allocator_may_return_null=1:handle_sigill=1"
        made["TSAN_OPTIONS"] = f"{common}:die_after_fork=0"
    return made


def compile_commands(out: Path, sources: list[Path], flags: str, libraries: str) -> list[list[str]]:
    """Return the commands that build the library `out` from the C files among `sources`."""
    files = [path for path in sources if path.suffix == ".c"]
    bare = [path for path in files if KIND and path.name in UNSANITIZED_FILES]
    objects = [f"{out}.{path.stem}.o" for path in bare]
    rest = [str(path) for path in files if path not in bare]
    aside = [["cc", *flags.split(), "-c", "-o", made, str(path)] for made, path in zip(objects, bare, strict=True)]
    return [*aside, ["cc", *flags.split(), *FLAGS, "-o", str(out), *rest, *objects, *libraries.split()]]
