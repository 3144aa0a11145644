"""Fixtures of the tests with a real framework on the simulated device (`make test-frameworks`)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ..driver_facts.harness import ROOT, simulated_driver
from ..system.system_host import MIB, GpuProgram, SystemHost, system_host

HERE = Path(__file__).resolve().parent
PYTHON = Path(os.environ.get("GPUSHARE_TEST_PYTHON") or ROOT / ".venv-frameworks" / "bin" / "python")
STAND_INS = Path(os.environ.get("GPUSHARE_TEST_STAND_INS") or ROOT / "build" / "simcudart")
LIBRARY_PATH = f"{STAND_INS}:{simulated_driver().parent}"  # of a program without the shim
REMEDY = "make frameworks"


@cache
def problem() -> str:
    """Return the reason why the tests cannot run, or nothing."""
    if not PYTHON.exists():
        return f"no Python with frameworks at {PYTHON} ({REMEDY})"
    if not any(STAND_INS.glob("libcudart.so.*")):
        return f"no stand-ins for the CUDA libraries in {STAND_INS} ({REMEDY})"
    code = "import torch; assert torch.version.cuda, 'PyTorch was built without CUDA'"
    env = os.environ | {"LD_LIBRARY_PATH": LIBRARY_PATH}
    done = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


@pytest.fixture(autouse=True)
def frameworks() -> None:
    if reason := problem():
        pytest.skip(reason)


class FrameworkHost(SystemHost):
    """Host whose programs may be PyTorch programs, with a simulated device of 1 GiB."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, memory=1024 * MIB)

    def torch(self, client: str, mode: str = "", quota: str = "", **more: str) -> GpuProgram:
        """Start a PyTorch program of a client in a memory mode, or without the shim if `mode` is empty."""
        if mode:
            more |= {"GPUSHARE_MEMORY_MODE": mode, "LD_LIBRARY_PATH": str(STAND_INS)}
            env = self.client_environment(client, quota, **more)
        else:
            env = self.environment(**more, LD_LIBRARY_PATH=LIBRARY_PATH)
        return self._keep(GpuProgram([str(PYTHON), str(HERE / "torch_program.py")], env))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameworkHost]:
    """Return a host with a coordinator whose turns are short."""
    with system_host(monkeypatch, FrameworkHost) as new_host:
        new_host.start_coordinator("--time-quantum", "0.1")
        yield new_host
