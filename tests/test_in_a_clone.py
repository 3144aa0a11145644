"""Tests of programs whose current folder is a clone of the sources: they use the installed package.

The clone has no native parts, so a program that imports the package from the clone fails.
Each test runs with the shipped defaults.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client, Unreachable

from .support.build_wheel import ROOT, Environment

CELLS = [
    "%gpushare",
    "import helper, jupyter_gpushare as gs\nprint(helper.PLACE, gs.__file__, gs.quota()['limit'], sep='\\n')",
    "from jupyter_gpushare.demo.gpu import Gpu\ngpu = Gpu()\nprint(gpu.full(1000, 2.0).numpy()[0])",
]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the wheel and with the command `jupyter-execute`."""
    made = Environment(tmp_path_factory.mktemp("installed") / "env")
    made.run_checked("pip", "install", "--no-deps", "--no-index", str(wheel))
    made.console_script("jupyter-execute", "nbclient.cli", "main")
    return made


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources as in git, with a module of the user in the same folder."""
    made = tmp_path_factory.mktemp("clone")
    unbuilt = shutil.ignore_patterns("native", "labextension", "__pycache__")
    shutil.copytree(ROOT / "jupyter_gpushare", made / "jupyter_gpushare", ignore=unbuilt)
    shutil.copy(ROOT / "hatch_build.py", made)
    (made / "helper.py").write_text('PLACE = "in the notebook\'s folder"\n')
    return made


@pytest.fixture
def host() -> Iterator[dict[str, str]]:
    """Yield the variables of a host with one simulated device, and stop its coordinator at the end."""
    with tempfile.TemporaryDirectory(prefix="gs-clone-") as name:
        variables = {
            "GPUSHARE_SIMULATE": "1",
            "GPUSHARE_SOCKET": f"{name}/c.sock",
            "GPUSHARE_LOCK_DIR": f"{name}/locks",
            "GPUSHARE_SIM_STATE": f"{name}/devices",
            "XDG_STATE_HOME": f"{name}/state",
        }
        yield variables
        try:
            with Client(variables["GPUSHARE_SOCKET"]) as client:
                client.request(messages.Stop())
        except Unreachable:  # no coordinator was started, and the test has failed by then
            pass


@pytest.mark.parametrize("start", ["provisioner", "launcher"])
def test_a_notebook_uses_the_installed_package(
    installed: Environment, clone: Path, host: dict[str, str], start: str
) -> None:
    kernels = installed.folder / "share" / "jupyter" / "kernels"
    spec = json.loads((kernels / "python3-gpushare" / "kernel.json").read_text())
    if start == "launcher":  # as for a front end that ignores provisioners
        del spec["metadata"]["kernel_provisioner"]
    (kernels / start).mkdir()
    (kernels / start / "kernel.json").write_text(json.dumps(spec))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    nbformat.write(notebook, clone / f"{start}.ipynb")
    arguments = [f"--kernel_name={start}", f"{start}.ipynb", f"--output={start}-done"]
    done = installed.script("jupyter-execute", *arguments, cwd=clone, **host)
    assert done.returncode == 0, done.stderr
    report, imported, computed = nbformat.read(clone / f"{start}-done.ipynb", 4).cells
    printed = ["".join(output.get("text", "") for output in cell.outputs) for cell in (report, imported, computed)]
    shown = report.outputs[-1]["data"]["text/plain"]
    assert "missing" not in printed[0] + shown and "may allocate" in report.outputs[-1]["data"]["text/html"]
    helper, module, limit = printed[1].splitlines()
    assert (helper, limit) == ("in the notebook's folder", "1.0")
    assert Path(module).is_relative_to(installed.folder)
    assert printed[2] == "2.0\n"


def test_a_bench_uses_the_installed_package(installed: Environment, clone: Path, host: dict[str, str]) -> None:
    done = installed.script("jupyter-gpushare", "bench", "gate", "--rounds", "1", "--json", cwd=clone, **host)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["gated_ns"] > 0


def test_a_program_gets_a_coordinator_of_the_installed_package(
    installed: Environment, clone: Path, host: dict[str, str]
) -> None:
    done = installed.script("jupyter-gpushare", "run", "--", "true", cwd=clone, **host)
    assert (done.returncode, done.stderr) == (0, "")
    with Client(host["GPUSHARE_SOCKET"]) as client:
        pid = client.request(messages.Status())["coordinator"]["pid"]
    assert str(installed.folder / "lib") in Path(f"/proc/{pid}/cmdline").read_text()
    doctor = installed.script("jupyter-gpushare", "doctor", "--json", cwd=clone, **host)
    problems = [found for found in json.loads(doctor.stdout) if found["level"] == "error"]
    assert problems == []


def test_a_script_that_imports_an_unbuilt_clone_gets_the_remedy(
    installed: Environment, clone: Path, host: dict[str, str]
) -> None:
    """The script imports the clone, because Python puts the folder of a script first on the path."""
    (clone / "script.py").write_text(CELLS[2])
    python = str(installed.folder / "bin" / "python")
    remedy = f"is missing: run 'make native' in {clone}, or leave this folder to use an installed package"
    done = installed.script("jupyter-gpushare", "run", "--", python, "script.py", cwd=clone, **host)
    assert done.stderr.endswith(f"builtins.ptx {remedy}\n")
    checked = installed.script("python", "-m", "jupyter_gpushare", "doctor", cwd=clone, **host)
    assert "libgpushare.so" in checked.stdout and remedy.partition(": ")[2] in checked.stdout
