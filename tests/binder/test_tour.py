"""Tests of the Binder tour: the output of each step of its notebook, the build of its image, and its workspace."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import Client

from ..support import fresh_user

ROOT = Path(__file__).resolve().parent.parent.parent
BINDER = ROOT / "binder"
NOTEBOOKS = ("gpushare-tour.ipynb", "gpushare-neighbour.ipynb")


@pytest.fixture
def home(own_host: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fresh_user.fresh_environment(tmp_path_factory.mktemp("home"), own_host)


def started(home: dict[str, str], *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as Binder runs the server."""
    done = subprocess.run(["bash", BINDER / "start", *command], env=home, text=True, capture_output=True, **options)
    assert done.returncode == 0, done.stderr
    return done


def text(outputs: Any) -> str:
    """Return the outputs of a cell as text."""
    shown = [one.get("text") or one.get("data", {}).get("text/plain") or one.get("evalue", "") for one in outputs]
    return "\n".join(shown)


# Texts in the outputs of each step.
EXPECTED = {
    "status": ["imulated", "256 MiB"],
    "first": ["0 wrong elements"],
    "together": ["0 wrong elements"],
    "quota": ["memory 200 MiB", "share 0.4"],
    "beyond": ["refused: CUDA_ERROR_OUT_OF_MEMORY"],
    "wrong": ["from 0 to 1"],
    "class": ["0 wrong elements"],
    "hold": ["30 s", "keep"],
    "evict": ["MiB", "returns with the next turn"],
    "suspend": ["suspended", "resume"],
    "resume": ["takes turns again"],
    "still-right": ["0 wrong elements"],
    "history": ["waited"],
    "python": ["'share': 0"],
}


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_each_step_of_the_tour_has_the_documented_output(home: dict[str, str], tmp_path: Path) -> None:
    for name in NOTEBOOKS:
        shutil.copy(BINDER / name, tmp_path)
    started(home, "python", str(Path(__file__).parent / "run_tour.py"), str(tmp_path), str(tmp_path / "out.ipynb"))
    cells = nbformat.read(tmp_path / "out.ipynb", as_version=4).cells
    steps = {cell.id: cell.outputs for cell in cells if cell.cell_type == "code"}
    assert [name for name, outputs in steps.items() if not outputs] == []
    # An unexpected failure of a step would have ended `run_tour.py`.
    for name, texts in EXPECTED.items():
        for expected in texts:
            assert re.search(rf"(?<![\d.]){re.escape(expected)}", text(steps[name])), name
    waited = re.search(r"waited ([\d.]+) s", text(steps["together-status"]))
    assert (
        waited and 0.5 < float(waited[1]) < 60
    )  # the neighbour's turns take five seconds, and longer on a busy machine
    assert "application/vnd.jupyter.widget-view+json" in steps["widget"][0]["data"]
    with Client(home["GPUSHARE_SOCKET"]) as coordinator:  # the coordinator of the tour
        status = coordinator.request(messages.Status())
    assert (status["config"]["time_quantum"], status["config"]["sharing"]) == (5.0, "exclusive")
    assert [(one["simulated"], one["memory_total"]) for one in status["devices"]] == [(True, 256 << 20)]


def test_notebooks_are_stored_without_outputs() -> None:
    for name in NOTEBOOKS:
        notebook = nbformat.read(BINDER / name, as_version=4)
        assert notebook.metadata.kernelspec.name == "python3-gpushare"
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


@pytest.mark.nightly
def test_the_image_is_built(home: dict[str, str], tmp_path: Path) -> None:
    """The test runs `postBuild` with a stand-in for the installation, `pip install .[demo,widgets]`."""
    if not (ROOT / "jupyter_gpushare/labextension/package.json").exists():
        pytest.skip("needs a built labextension, which Node.js builds")
    for part in ("binder", "labextension/node_modules", "bin"):
        (tmp_path / part).mkdir(parents=True)
    shutil.copy(BINDER / "tour.jupyterlab-workspace", tmp_path / "binder")
    stand_in = tmp_path / "bin" / "python"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/installed\n')
    stand_in.chmod(0o755)
    path = f"{tmp_path / 'bin'}{os.pathsep}{home['PATH']}"
    ran = subprocess.run(
        ["bash", BINDER / "postBuild"], cwd=tmp_path, env=home | {"PATH": path}, text=True, capture_output=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert (tmp_path / "installed").read_text() == "-m pip install --no-cache-dir .[demo,widgets]\n"
    assert not (tmp_path / "labextension" / "node_modules").exists()
    (stored,) = (Path(home["HOME"]) / ".jupyter" / "lab" / "workspaces").glob("default*")
    layout = json.loads(stored.read_text())["data"]["layout-restorer:data"]
    assert layout["right"] == {
        "collapsed": False,
        "visible": True,
        "current": "gpushare-panel",
        "widgets": ["gpushare-panel"],
    }


def test_the_workspace_names_the_panel() -> None:
    """JupyterLab's layout restorer identifies the panel by this ID."""
    assert "this.id = 'gpushare-panel'" in (ROOT / "labextension/src/panel/panel.tsx").read_text()
    assert "restorer?.add(panel, panel.id)" in (ROOT / "labextension/src/panel/plugin.ts").read_text()
