"""Real memory cgroups with a limit, of version 2 or 1, for tests that run as root."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from .polling import wait_until

_ROOT = Path("/sys/fs/cgroup")
_numbers = itertools.count()


class TestCgroup:
    """Cgroup of a test, which exists until `remove`."""

    __test__ = False

    def __init__(self, parent: Path, limit: int, version: int) -> None:
        self.version = version
        self.folder = parent / f"gpushare-test-{os.getpid()}-{next(_numbers)}"
        self.folder.mkdir()
        self.set_limit(limit)

    def set_limit(self, limit: int) -> None:
        (self.folder / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")).write_text(str(limit))

    @property
    def entrance(self) -> str:
        """Shell commands that move the shell into the cgroup."""
        return f"echo $$ > {self.folder}/cgroup.procs"

    def used_bytes(self) -> int:
        return int((self.folder / ("memory.current" if self.version == 2 else "memory.usage_in_bytes")).read_text())

    def oom_kills(self) -> int:
        """Return how many processes Linux has killed because the cgroup was at its limit."""
        file = self.folder / ("memory.events" if self.version == 2 else "memory.oom_control")
        counts = dict(line.split() for line in file.read_text().splitlines())
        return int(counts["oom_kill"])

    @contextlib.contextmanager
    def process(self) -> Iterator[int]:
        """Run a process in the cgroup that does nothing, and yield its pid."""
        command = f"{self.entrance} && echo started && exec cat"
        program = subprocess.Popen(["sh", "-ec", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with program:
            assert program.stdin and program.stdout and program.stdout.readline() == b"started\n"
            yield program.pid
            program.stdin.close()

    def remove(self) -> None:
        """Kill the processes that are still in the cgroup, and remove it."""
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        wait_until(self._try_remove, what="the cgroup of a test is still in use")

    def _try_remove(self) -> bool:
        try:
            self.folder.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            return False
        return True


class MakeCgroup(Protocol):
    def __call__(self, limit: int, parent: TestCgroup | None = None) -> TestCgroup: ...


@contextlib.contextmanager
def cgroup_factory() -> Iterator[MakeCgroup]:
    """Yield a function that makes a cgroup with a memory limit in bytes, below the root or below another one."""
    root, version = _find_root()
    made: list[TestCgroup] = []

    def make(limit: int, parent: TestCgroup | None = None) -> TestCgroup:
        if parent and version == 2:
            (parent.folder / "cgroup.subtree_control").write_text("+memory")
        made.append(TestCgroup(parent.folder if parent else root, limit, version))
        return made[-1]

    yield make
    for cgroup in reversed(made):
        cgroup.remove()


def _find_root() -> tuple[Path, int]:
    """Return the folder below which cgroups with a memory limit can be made, and the version; else skip the test."""
    if os.getuid() != 0:
        pytest.skip("needs root to make a cgroup")
    for folder, version in ((_ROOT, 2), (_ROOT / "unified", 2), (_ROOT / "memory", 1)):
        controllers = folder / "cgroup.subtree_control"
        if version == 2 and not (controllers.exists() and "memory" in controllers.read_text().split()):
            continue
        if (folder / "cgroup.procs").exists() and os.access(folder, os.W_OK):
            return folder, version
    pytest.skip("needs a writable cgroup hierarchy with the memory controller")
