"""Tests of programs with frameworks, without sharing and in every memory mode: the results are equal."""

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
MEMORY = "4GiB"  # above the memory of each program, and far below a third of the free memory
# The Python with the frameworks, by default the Python of the tests.
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
    """Run a program with `options` of `jupyter gpushare run`, or without sharing, and return its report."""
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
def run_unshared(case: str) -> dict[str, Any]:
    return run(case, (), {})


def compare(case: str, mode: str, bare: dict[str, Any], shared: dict[str, Any]) -> None:
    THROUGHPUT_LINES.append(
        f"{case:28} {mode:8} {shared['rate'] / bare['rate']:6.3f}   ({bare['rate']:.0f} steps/s without sharing)"
    )
    assert bare["results"] and shared["results"] == pytest.approx(bare["results"], rel=CASES[case][2])


@pytest.mark.gpu
@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", MEMORY_MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_program_computes_the_same_under_sharing(case: str, mode: str, coordinator: str) -> None:
    if seconds_left() < 0:
        pytest.skip("the time for programs is over (GPUSHARE_TEST_GPU_SECONDS)")
    bare = run_unshared(case)
    gpus = ("--gpus", "2") if case == "nccl" else ()
    compare(case, mode, bare, run(case, ("--memory-mode", mode, *gpus), {}))


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Yield the variables of programs with the simulated driver that do not get them from `run`."""
    monkeypatch.setenv("GPUSHARE_SIM_STATE", str(tmp_path / "state"))
    with coordinator_of(tmp_path, "--simulate"):
        yield {"LD_LIBRARY_PATH": str(simulated_driver().parent)}


@pytest.mark.parametrize("mode", [MEMORY_MODES[0], *tier.nightly(MEMORY_MODES[1:])])
def test_the_comparison_itself_on_the_simulated_driver(mode: str, simulated: dict[str, str]) -> None:
    """The program with driver calls needs no framework."""
    bare = run("driver", (), simulated)
    assert bare["results"] == [256.0, 256.0, 3.0, 6.0, 7.0]
    compare("driver", f"{mode} (simulated)", bare, run("driver", ("--simulate", "--memory-mode", mode), {}))
