"""Harness of the driver facts: tests that run in a process of their own, on the simulated driver or on a GPU.

`DRIVER=sim|gpu` selects the driver (default: sim).
A test marked `@on_driver` gets a `Cuda`: a device with a context and the built-in functions loaded.
Each test has a new Python process, because a process cannot initialise CUDA twice or survive a fatal device error.
Each process writes the calls with a status or a number, and a failed assertion, to the file `observed` of the test.
The file becomes a figure of the test in the report of `GPUSHARE_TEST_FIGURES` (`conftest.py`).
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..support import sanitizers
from ..support.compile_cache import cached

ROOT = Path(__file__).resolve().parents[2]
PTX = ROOT / "native" / "ptx" / "builtins.ptx"
SIMCUDA = ROOT / "native" / "simcuda"
SOURCES = [
    *sorted(path for path in SIMCUDA.rglob("*") if path.is_file()),
    ROOT / "native" / "shim" / "driver" / "cuda_types.h",
]
FLAGS = (
    f"-std=gnu11 -I{SIMCUDA} -O2 -g -fPIC -shared -fvisibility=hidden -pthread -Wl,-soname,libcuda.so.1"
    " -Wall -Wextra -Werror"
)
IS_GPU = os.environ.get("DRIVER", "sim") == "gpu"
MIB = 1 << 20
MS = 1_000_000  # nanoseconds
NON_BLOCKING = 1  # a stream
CANNOT_RUN = 77  # exit status of a test that this machine cannot run
OBSERVED = "DRIVER_FACT_OBSERVED"  # environment variable with the path of the file of observations
LAST_OBSERVATIONS = 12  # in the message of a failed test


@cache
def packaged(name: str) -> Path:
    """Return a native part of the package, brought up to date as `make native` does."""
    subprocess.run([sys.executable, str(ROOT / "hatch_build.py")], check=True, stdout=subprocess.DEVNULL)
    return ROOT / "jupyter_gpushare" / "native" / name


@cache
def simulated_driver() -> Path:
    """Return the library of the simulated driver, built from the present sources."""
    if not sanitizers.KIND:
        return packaged("simcuda/libcuda.so.1")
    return cached(
        "libcuda.so.1", SOURCES, lambda out: sanitizers.compile_commands(out, SOURCES, FLAGS, "-ldl -lm -lrt")
    )


def environment(state: Path, **more: str) -> dict[str, str]:
    """Return the environment of a program on the machine `state`, a file of the simulated driver."""
    ours = ("GPUSHARE_", "LD_PRELOAD") if IS_GPU else ("GPUSHARE_", "CUDA_", "LD_")
    made = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    if not IS_GPU:
        made["LD_LIBRARY_PATH"] = str(simulated_driver().parent)
        made["GPUSHARE_SIM_STATE"] = str(state)
        made |= sanitizers.preload()
    # Loading a function at its first launch would be a forbidden call inside a capture.
    return made | {"CUDA_MODULE_LOADING": "EAGER", OBSERVED: str(state.parent / "observed")} | more


def observations(folder: Path) -> list[str]:
    """Return what the processes of a test in this folder have observed, in order."""
    file = folder / "observed"
    return file.read_text().splitlines() if file.exists() else []


def newest_observations(folder: Path) -> str:
    """Return the last observations as one line, the newest first, for the message of a failed test."""
    return "; ".join(observations(folder)[: -LAST_OBSERVATIONS - 1 : -1])


def observe(text: str) -> None:
    """Append a line to the observations of the test, unless this process has just observed the same."""
    global _last_observation
    path = os.environ.get(OBSERVED)
    if path and text != _last_observation:
        _last_observation = text
        with Path(path).open("a") as file:
            file.write(text + "\n")


_last_observation = ""


# The folder becomes the package `tests`, even if another package has this name.
BOOTSTRAP = """
import sys, types
tests = sys.modules["tests"] = types.ModuleType("tests")
tests.__path__ = [sys.argv[1]]
from tests.driver_facts.harness import main
main()
"""


def start_test(test: Callable[..., Any], variables: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Call `test(cuda, *arguments)` in a new process with these environment variables."""
    module = ".".join(Path(test.__code__.co_filename).relative_to(ROOT).with_suffix("").parts)
    argv = [sys.executable, "-c", BOOTSTRAP, str(ROOT / "tests"), module, test.__name__, *arguments]
    return subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def on_driver(**variables: str) -> Callable[[Callable[..., Any]], Callable[[Path], None]]:
    """Make a pytest test of a function of a `Cuda`: it runs in a new process, on a machine of its own."""

    def decorate(test: Callable[..., Any]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            process = start_test(test, environment(tmp_path / "state", **variables))
            try:
                output, _ = process.communicate(timeout=90)
            finally:
                process.kill()
            if IS_GPU and process.returncode == CANNOT_RUN:
                pytest.skip("this machine cannot run the test")
            message = f"exit status {process.returncode}: {newest_observations(tmp_path)}\n{output}"
            assert process.returncode == 0, message

        run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
        run.test = test  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def running_process(
    test: Callable[..., Any], variables: dict[str, str], *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Start a process as `start` does, and end it afterwards. The process reports by lines of standard output."""
    process = start_test(test, variables, *arguments)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()


# Parameters of the built-in functions: address, u64, f32, u32.
SIGNATURES = {
    "fill_f32": "pfu",
    "axpy_f32": "ppfu",
    "matmul_f32": "pppi",
    "spin": "u",
    "stamp": "p",
    "work_f32": "puup",
    "wait_flag": "pi",
    "set_flag": "pi",
}


class CudaError(Exception):
    """Error of a driver call. `code` is its result, for instance 700."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} returned {code}")
        self.code = code


class Cuda:
    """Driver through cuda-bindings: `cuda.cuMemAlloc(n)` returns the result of the call, or raises `CudaError`."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        self.cuInit(0)
        self.device = self.cuDeviceGet(0)
        self.context = self.cuDevicePrimaryCtxRetain(self.device)
        self.cuCtxSetCurrent(self.context)
        self.module = self.cuModuleLoadData(PTX.read_bytes() + b"\0")
        self.functions = {name: self.cuModuleGetFunction(self.module, name.encode()) for name in SIGNATURES}

    def __getattr__(self, name: str) -> Any:
        function = getattr(self.driver, name)

        def call(*arguments: Any) -> Any:
            result, *values = function(*arguments)
            numbers = [int(value) for value in values if isinstance(value, int | self.driver.cuuint64_t)]
            if int(result) or numbers:
                observe(" ".join([f"{name}: {int(result)}", *map(str, numbers)]))
            if int(result):
                raise CudaError(name, int(result))
            return values[0] if len(values) == 1 else values or None

        return call if name.startswith("cu") else function

    def code(self, name: str, *arguments: Any) -> int:
        """Return the status of a call, 0 for success."""
        status = int(getattr(self.driver, name)(*arguments)[0])
        observe(f"{name}: {status}")
        return status

    def launch(self, name: str, *arguments: Any, stream: Any = 0) -> None:
        """Launch a built-in function. Addresses and numbers may be ints, floats are `float`."""
        types = SIGNATURES[name]
        kinds = {"p": ctypes.c_uint64, "u": ctypes.c_uint64, "f": ctypes.c_float, "i": ctypes.c_uint32}
        values = tuple(value if kind == "f" else int(value) for value, kind in zip(arguments, types, strict=True))
        # One block is enough for work that takes time, but not for work that needs memory bandwidth.
        blocks = 1 if name in ("spin", "stamp", "wait_flag", "set_flag") else 256
        threads = 1 if blocks == 1 else 256
        parameters = (values, tuple(kinds[kind] for kind in types))
        self.cuLaunchKernel(self.functions[name], blocks, 1, 1, threads, 1, 1, 0, stream, parameters, 0)

    def read(self, address: Any, size: int, offset: int = 0) -> bytes:
        """Read bytes of device memory."""
        data = bytearray(size)
        self.cuMemcpyDtoH(data, int(address) + offset, size)
        return bytes(data)

    def read_f32(self, address: Any, index: int) -> float:
        value = ctypes.c_float.from_buffer_copy(self.read(address, 4, 4 * index)).value
        observe(f"number {index}: {value}")
        return value

    def host_flag(self) -> tuple[ctypes.c_uint32, int]:
        """Return a word in pinned host memory that device and host share, and its device address."""
        memory = self.cuMemHostAlloc(4, 0)
        word = ctypes.c_uint32.from_address(int(memory))
        word.value = 0
        return word, int(self.cuMemHostGetDevicePointer(memory, 0))

    def is_done(self, stream: Any) -> bool:
        code = self.code("cuStreamQuery", stream)
        if code not in (0, 600):
            raise CudaError("cuStreamQuery", code)
        return code == 0


def main() -> None:
    """Run MODULE FUNCTION ARGUMENTS… in the new process (see `start`)."""
    module, name, *arguments = sys.argv[2:]
    test = getattr(importlib.import_module(module), name)
    try:
        getattr(test, "test", test)(Cuda(), *arguments)
    except Exception as error:
        for frame in traceback.extract_tb(error.__traceback__)[1:]:
            observe(f"{Path(frame.filename).name}:{frame.lineno}: {frame.line}")
        observe(repr(error))
        raise
