"""Builds of before, made from this repository's own history, and a host on which they meet this one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from shlex import quote
from typing import NamedTuple

import pytest

from jupyter_gpushare import environment

from ..builds import cached
from ..system.host import Host, Program

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Build(NamedTuple):
    """A checkout with its native parts."""

    root: Path

    @property
    def shim(self) -> Path:
        return self.root / "jupyter_gpushare" / "native" / "libgpushare.so"


THIS = Build(ROOT)


def previous() -> list[str]:
    """The commits of `previous.txt`, oldest first."""
    lines = (HERE / "previous.txt").read_text().splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def make(commit: str) -> Build:
    """The build of `commit`. Skips the test where the history does not go back that far."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs git, and a clone of the repository: an unpacked archive has no history")
    known = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"], cwd=ROOT, capture_output=True, check=False
    )
    if known.returncode:
        pytest.skip(f"needs commit {commit}, which a shallow clone does not have (git fetch --unshallow)")
    # The driver is the machine's: of one version, whoever uses it.
    driver = environment.SIMULATED_DRIVER
    parts = "jupyter_gpushare native hatch_build.py"
    root = cached(
        commit,
        [driver],
        lambda root: [
            ["mkdir", str(root)],
            ["sh", "-ec", f"git -C {quote(str(ROOT))} archive {commit} {parts} | tar -x -C {quote(str(root))}"],
            ["sh", "-ec", f"cd {quote(str(root))} && exec {quote(sys.executable)} hatch_build.py >/dev/null"],
            ["cp", str(driver), f"{root}/jupyter_gpushare/native/simcuda/{driver.name}"],
        ],
    )
    return Build(root)


class MixedHost(Host):
    """Whose coordinator, programs and kernels are of several builds."""

    def start_with(self, build: Build, *options: str) -> None:
        """The coordinator of a build."""
        self.start_coordinator(*options, PYTHONPATH=str(build.root))

    def program_of(self, build: Build, client: str, quota: str = "") -> Program:
        """A program with the build's shim, and the device initialised."""
        return self.program(client, quota, shim=build.shim)

    def kernelspec_of(self, build: Build) -> str:
        """The name of a kernelspec whose kernel has all that the build gives one: launcher, shim, cell hooks."""
        name = f"of-{build.root.name}"
        folder = self.folder / "share" / "kernels" / name
        if not folder.exists():
            folder.mkdir()
            argv = [sys.executable, "-m", "jupyter_gpushare.launcher", "-m", "ipykernel_launcher", "-f"]
            spec = {"argv": [*argv, "{connection_file}"], "display_name": name, "language": "python"}
            (folder / "kernel.json").write_text(json.dumps({**spec, "env": {"PYTHONPATH": str(build.root)}}))
        return name
