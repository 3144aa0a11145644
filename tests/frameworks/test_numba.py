"""Comparison of the results of Numba's own tests without the shim and in each memory mode."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ..driver_facts.harness import ROOT, simulated_driver
from .conftest import MODES, PROGRAMS, FrameworkHost

PYTHON = Path(os.environ.get("GPUSHARE_TEST_NUMBA_PYTHON") or ROOT / ".venv-numba" / "bin" / "python")
# Modules of numba.cuda.tests.cudadrv: those of memory, contexts, streams and launches.
MODULES = [
    "context_stack",
    "cuda_array_slicing",
    "cuda_auto_context",
    "cuda_devicerecord",
    "cuda_driver",
    "cuda_memory",
    "cuda_ndarray",
    "deallocations",
    "emm_plugins",
    "events",
    "host_alloc",
    "managed_alloc",
    "module_callbacks",
    "pinned",
    "reset_device",
    "select_device",
    "streams",
]
SECONDS = 300.0  # limit of one run of the tests, on a busy machine
MIN_PASSED = 100


@pytest.fixture(autouse=True)
def frameworks() -> None:
    """Replace the fixture that requires PyTorch."""
    if not PYTHON.exists():
        pytest.skip(f"no Python with Numba at {PYTHON} (make frameworks)")


def passed(host: FrameworkHost, mode: str) -> set[str]:
    """Run Numba's tests in a memory mode, or without the shim if `mode` is empty, and return the passed ones."""
    report = host.folder / "report.xml"
    more = {"GPUSHARE_SIM_KERNEL_NS": "20000", "PYTHONPATH": str(PROGRAMS)}
    if mode:
        env = host.client_environment("numba", GPUSHARE_MEMORY_MODE=mode, **more)
    else:
        env = host.environment(LD_LIBRARY_PATH=str(simulated_driver().parent), **more)
    options = ["-q", "-p", "no:cacheprovider", "-p", "numba_plugin", f"--junitxml={report}"]
    options += ["-o", "consider_namespace_packages=true"]
    done = subprocess.run(
        [PYTHON, "-m", "pytest", *options, "--pyargs", *(f"numba.cuda.tests.cudadrv.test_{name}" for name in MODULES)],
        env=env,
        cwd=host.folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")
    report.unlink()
    return {f"{case.get('classname')}.{case.get('name')}" for case in cases if len(case) == 0}


@pytest.mark.nightly
@pytest.mark.timeout(len(MODES) * SECONDS + 60)
def test_numba_passes_the_same_tests_without_the_shim_and_in_each_mode(host: FrameworkHost) -> None:
    without_shim = passed(host, "")
    assert len(without_shim) >= MIN_PASSED
    for mode in MODES[1:]:
        assert passed(host, mode) == without_shim, mode
