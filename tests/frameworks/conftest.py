"""Fixtures of the tests with a real framework on the simulated device (`make test-frameworks`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from ..driver_facts.harness import ROOT, simulated_driver
from ..system.system_host import MIB, GpuProgram, SystemHost, system_host
from .suites import STAND_INS

PROGRAMS = Path(__file__).resolve().parent / "programs"
MODES = ["", "unified", "swap", "plain"]  # without the shim, and the memory modes
PYTHON = Path(os.environ.get("GPUSHARE_TEST_PYTHON") or ROOT / ".venv-frameworks" / "bin" / "python")
START_SECONDS = 120.0  # limit of the start of a program, which loads a gigabyte of libraries
# By name, with their options in PYTORCH_CUDA_ALLOC_CONF.
ALLOCATORS = {
    "native": "",
    "expandable segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
REMEDY = "make frameworks"


@cache
def problem() -> str:
    """Return the reason why the tests cannot run, or nothing."""
    if not PYTHON.exists():
        return f"no Python with frameworks at {PYTHON} ({REMEDY})"
    if not any(STAND_INS.glob("libcudart.so.*")):
        return f"no stand-ins for the CUDA libraries in {STAND_INS} ({REMEDY})"
    code = "import torch; assert torch.version.cuda, 'PyTorch was built without CUDA'"
    env = os.environ | {"LD_LIBRARY_PATH": unshared_path()}
    done = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


def unshared_path() -> str:
    """Return the LD_LIBRARY_PATH of a program without the shim."""
    return f"{STAND_INS}:{simulated_driver().parent}"


def write_kernelspec(kernels: Path, mode: str) -> str:
    """Write a kernelspec for the Python with PyTorch in a memory mode to the folder `kernels`, and return its name."""
    folder = kernels / "torch"
    folder.mkdir()
    spec = {
        "argv": [str(PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "PyTorch",
        "language": "python",
        "env": {"LD_LIBRARY_PATH": str(STAND_INS), "GPUSHARE_MEMORY_MODE": mode},
        "metadata": {"kernel_provisioner": {"provisioner_name": "gpushare-provisioner", "config": {}}},
    }
    (folder / "kernel.json").write_text(json.dumps(spec))
    return folder.name


@pytest.fixture(autouse=True)
def frameworks() -> None:
    if reason := problem():
        pytest.skip(reason)


class FrameworkHost(SystemHost):
    """Host whose programs may be PyTorch programs."""

    def __init__(self, folder: Path, memory: int = 1024 * MIB) -> None:
        super().__init__(folder, memory)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a shell whose programs may load compiled kernels, which compute nothing."""
        return super().environment(**{"GPUSHARE_SIM_KERNEL_NS": "20000", **more})

    def start_coordinator(self, *options: str, **more: str) -> None:
        """Start a coordinator that stays without clients, because a framework takes long to start on a busy machine."""
        super().start_coordinator("--exit-after", "0", *options, **more)

    def torch(self, client: str, mode: str = "", quota: str = "", **more: str) -> GpuProgram:
        """Start a PyTorch program of a client in a memory mode, or without the shim if `mode` is empty.

        Kernels that the program compiles are kept in this host's folder.
        """
        more |= {"TRITON_LIBCUDA_PATH": str(simulated_driver().parent)}
        more |= {name: str(self.folder / "cache") for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")}
        if mode:
            more |= {"GPUSHARE_MEMORY_MODE": mode, "LD_LIBRARY_PATH": str(STAND_INS)}
            env = self.client_environment(client, quota, **more)
        else:
            env = self.environment(**more, LD_LIBRARY_PATH=unshared_path())
        program = self._keep(GpuProgram([str(PYTHON), str(PROGRAMS / "torch_program.py")], env))
        program.run("None", START_SECONDS)
        return program

    def rival(self, mode: str, size: int) -> GpuProgram:
        """Start a client without a framework that has `size` bytes and keeps taking turns."""
        program = self.program("rival", GPUSHARE_MEMORY_MODE=mode)
        program.run(f"status, array = cuda.alloc({size}); check(status)")
        program.run(f"check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({size})))")
        program.busy()
        return program


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[FrameworkHost]:
    """Return a host with a coordinator whose turns are short, and longer than the transfer of the device's memory.

    The rival's memory is small, so the programs would be colocated by default.
    """
    with system_host(monkeypatch, FrameworkHost) as new_host:
        new_host.start_coordinator("--sharing", "exclusive", "--time-quantum", "1")
        yield new_host
