"""Programs of the frameworks, alone and under every memory mode: the same results, and how much slower."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.quotas import MEMORY_MODES

from ..driver_facts.harness import simulated_driver
from ..support import tier
from .conftest import THROUGHPUT_LINES, coordinator_of, seconds_left

PROGRAMS = Path(__file__).resolve().parent / "programs"
MEMORY = "4GiB"  # more than any of them takes; far less than a third of what must be free
# The Python that has the frameworks, if it is not the one that runs the tests.
PYTHON = os.environ.get("GPUSHARE_TEST_PYTHON", sys.executable)

# Name, file, environment, relative tolerance of the results.
CASES: dict[str, tuple[str, dict[str, str], float]] = {
    "driver": ("driver_calls.py", {}, 0),
    "torch": ("torch_training.py", {}, 2e-2),
    "torch, expandable segments": ("torch_training.py", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, 2e-2),
    "torch, cudaMallocAsync": ("torch_training.py", {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, 2e-2),
    "torch.compile": ("torch_compiled.py", {}, 1e-3),
    "cupy": ("cupy_arrays.py", {}, 1e-5),
    "jax": ("jax_training.py", {}, 1e-3),
    "triton": ("triton_sum.py", {}, 0),
    "nccl": ("nccl_ranks.py", {}, 0),
}


def run(case: str, options: tuple[str, ...], variables: dict[str, str]) -> dict[str, Any]:
    """What the program says. `options`: of `jupyter gpushare run`; none: without sharing."""
    name, more, _ = CASES[case]
    command = [PYTHON, str(PROGRAMS / name)]
    if options:
        command = [sys.executable, "-m", "jupyter_gpushare", "run", "--memory", MEMORY, *options, "--", *command]
    done = subprocess.run(command, env={**os.environ, **variables, **more}, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    words, _, text = done.stdout.splitlines()[-1].partition(" ")
    if words == "SKIP":
        pytest.skip(text)
    assert words == "RESULT", done.stdout
    found: dict[str, Any] = json.loads(text)
    return found


@cache
def alone(case: str) -> dict[str, Any]:
    return run(case, (), {})


def compare(case: str, mode: str, bare: dict[str, Any], shared: dict[str, Any]) -> None:
    THROUGHPUT_LINES.append(
        f"{case:28} {mode:8} {shared['rate'] / bare['rate']:6.3f}   ({bare['rate']:.0f} steps/s alone)"
    )
    assert bare["results"] and shared["results"] == pytest.approx(bare["results"], rel=CASES[case][2])


@pytest.mark.gpu
@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", MEMORY_MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_program_computes_the_same_under_sharing(case: str, mode: str, coordinator: str) -> None:
    if seconds_left() < 0:
        pytest.skip("the time for programs is over (GPUSHARE_TEST_GPU_SECONDS)")
    bare = alone(case)
    gpus = ("--gpus", "2") if case == "nccl" else ()
    compare(case, mode, bare, run(case, ("--memory-mode", mode, *gpus), {}))


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Variables of a machine with the simulated driver, for programs that don't get them from `run`."""
    monkeypatch.setenv("GPUSHARE_SIM_STATE", str(tmp_path / "state"))
    with coordinator_of(tmp_path, "--simulate"):
        yield {"LD_LIBRARY_PATH": str(simulated_driver().parent)}


@pytest.mark.parametrize("mode", [MEMORY_MODES[0], *tier.nightly(MEMORY_MODES[1:])])
def test_the_comparison_itself_on_the_simulated_driver(mode: str, simulated: dict[str, str]) -> None:
    """The program that needs no framework; the others say why they can't run here."""
    bare = run("driver", (), simulated)
    assert bare["results"] == [256.0, 256.0, 3.0, 6.0, 7.0]
    compare("driver", f"{mode} (simulated)", bare, run("driver", ("--simulate", "--memory-mode", mode), {}))
