"""Builder of the wheel and sdist of this tree, and of environments for their installation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import jupyter_client
import pytest

ROOT = Path(__file__).resolve().parents[2]
LABEXTENSION = ROOT / "jupyter_gpushare/labextension/static/style.js"


def build_package(target: str, folder: Path) -> Path:
    """Run the build backend; it reuses native parts and labextension of this tree that are up to date."""
    if not LABEXTENSION.exists() and shutil.which("node") is None:
        pytest.skip("needs Node.js or a built labextension")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environment = os.environ | {"PATH": f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"}
    if LABEXTENSION.exists():
        environment["HATCH_JUPYTER_BUILDER_SKIP_NPM"] = "1"
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    (archive,) = folder.iterdir()
    return archive


class Environment:
    """Virtual environment with all packages of this one except this package, which tests install with `pip`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        venv.create(folder, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for entry in Path(jupyter_client.__file__).parents[1].iterdir():
            if "gpushare" not in entry.name and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(entry)

    def run(self, module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self._run(["bin/python", "-m", module, *arguments], self.folder, variables)

    def console_script(self, name: str, module: str, function: str) -> None:
        """Make `bin/NAME` as pip does, for a package that is only linked into the environment."""
        script = self.folder / "bin" / name
        program = f"import sys\nfrom {module} import {function}\nsys.exit({function}())\n"
        script.write_text(f"#!{self.folder}/bin/python\n{program}")
        script.chmod(0o755)

    def script(self, name: str, *arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a console script in a folder."""
        return self._run([f"bin/{name}", *arguments], cwd, variables)

    def _run(self, command: list[str], cwd: Path, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        ours = ("GPUSHARE_", "JUPYTER_", "XDG_", "PYTHONPATH", "LD_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return subprocess.run(
            [str(self.folder / command[0]), *command[1:]],
            env=clean | {"HOME": str(self.home)} | variables,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def run_checked(self, module: str, *arguments: str, **variables: str) -> str:
        done = self.run(module, *arguments, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def offered_kernels(self, **variables: str) -> set[str]:
        """Return the kernels that front ends offer."""
        listed = json.loads(self.run_checked("jupyter_client.kernelspecapp", "list", "--json", **variables))
        return {name for name, spec in listed["kernelspecs"].items() if str(self.folder) in spec["resource_dir"]}

    def leftover_files(self) -> list[str]:
        """Return the files with this package's name, and the kernel specs that name this package."""
        return [
            str(path.relative_to(self.folder))
            for part in ("home", "bin", "etc", "share", "lib")
            for path in (self.folder / part).rglob("*")
            if "gpushare" in path.name or (path.name == "kernel.json" and "gpushare" in path.read_text())
        ]
