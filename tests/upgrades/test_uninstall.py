"""What `pip uninstall` leaves behind: nothing that doesn't start."""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import jupyter_client
import pytest

from ..packages import build_package

pytestmark = pytest.mark.timeout(300)  # the wheel is built, and packages are installed


class Environment:
    """A virtual environment with all that this one has, but not this package, which is installed there by `pip`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        venv.create(folder, symlinks=True)
        (packages,) = folder.glob("lib/python*/site-packages")
        for entry in Path(jupyter_client.__file__).parents[1].iterdir():
            if "gpushare" not in entry.name and entry.suffix != ".pth":
                (packages / entry.name).symlink_to(entry)

    def run(self, module: str, *words: str) -> subprocess.CompletedProcess[str]:
        ours = ("GPUSHARE_", "JUPYTER_", "XDG_", "PYTHONPATH", "LD_")
        clean = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return subprocess.run(
            [str(self.folder / "bin" / "python"), "-m", module, *words],
            env=clean | {"HOME": str(self.home)},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def must(self, module: str, *words: str) -> str:
        done = self.run(module, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kernels(self) -> set[str]:
        """What front ends offer."""
        listed = json.loads(self.must("jupyter_client.kernelspecapp", "list", "--json"))
        return {name for name, spec in listed["kernelspecs"].items() if str(self.folder) in spec["resource_dir"]}

    def traces(self) -> list[str]:
        """Files that name this package, or have its name."""
        return [
            str(path.relative_to(self.folder))
            for part in ("home", "bin", "etc", "share", "lib")
            for path in (self.folder / part).rglob("*")
            if "gpushare" in path.name or (path.name == "kernel.json" and "gpushare" in path.read_text())
        ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    made.must("pip", "install", "--no-index", "--no-deps", str(wheel))
    return made


def test_nothing_is_left_once_variants_are_removed_and_the_package_is(environment: Environment) -> None:
    """As docs/upgrades.md says. Also variants of the same name in several places."""
    environment.must("jupyter_gpushare", "kernelspec", "install", "--sys-prefix")
    environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "mine", "--memory", "8GiB")
    for place in ("--sys-prefix", "--user"):
        environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "twice", place)
    assert {"python3-gpushare", "mine", "twice"} <= environment.kernels()
    environment.must("jupyter_gpushare", "kernelspec", "remove", "--all")
    environment.must("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.traces() == []
    assert environment.kernels() == {"python3"}


def test_who_forgets_the_variants_is_offered_none_that_would_not_start(environment: Environment) -> None:
    environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "mine")
    assert {"python3-gpushare", "mine"} <= environment.kernels()
    environment.must("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.traces() == ["share/jupyter/kernels/mine/kernel.json"]
    assert environment.kernels() == {"python3"}  # jupyter_client offers none whose provisioner is not there
    environment.must("jupyter_client.kernelspecapp", "remove", "-f", "mine")
    assert environment.traces() == []
