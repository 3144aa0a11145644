"""Fixtures with the shim of this tree, programs under the shim, and a coordinator that the test scripts."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ..driver_facts.harness import PTX, ROOT, packaged, simulated_driver
from ..support import sanitizers
from ..support.compile_cache import cached
from ..support.interpreter import Interpreter
from . import simlog
from .fake_coordinator import WAIT_SECONDS, ProcessConnection, ScriptedCoordinator, scripted_coordinator

HERE = Path(__file__).resolve().parent
FLAGS = (
    f"-std=gnu11 -I{ROOT / 'native' / 'shim'} -O2 -g -fPIC -shared -fvisibility=hidden -ftls-model=initial-exec"
    " -pthread -Wl,-soname,libgpushare.so -Wall -Wextra -Werror"
)


@cache
def built_shim() -> Path:
    if not sanitizers.KIND:
        return packaged("libgpushare.so")
    sources = sorted(path for path in (ROOT / "native" / "shim").rglob("*") if path.is_file())
    return cached("libgpushare.so", sources, lambda out: sanitizers.compile_commands(out, sources, FLAGS, "-ldl"))


def pytest_sessionstart(session: pytest.Session) -> None:
    """Build the libraries with a sanitizer before the tests, whose time limit leaves no room for it."""
    if sanitizers.KIND and not hasattr(session.config, "workerinput"):
        with ThreadPoolExecutor() as executor:
            list(executor.map(lambda build: build(), (built_shim, simulated_driver)))


@cache
def built_program(source: str, *flags: str) -> Path:
    """Return a C program of this folder, built."""
    path = HERE / source
    command = ["cc", "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-pthread", *sanitizers.FLAGS, str(path)]
    return cached(path.stem, [path], lambda out: [[*command, "-o", str(out), "-ldl", *flags]])


class CudaClient(Interpreter):
    """Process that runs `cuda_client.py`."""

    def __init__(self, environment: dict[str, str], python: str = sys.executable) -> None:
        super().__init__([python, str(HERE / "cuda_client.py")], environment)

    def is_running(self, seconds: float = 0.15) -> bool:
        """Return whether the line that was started still runs after so many seconds."""
        try:
            self._answers.put(self._answers.get(timeout=seconds))
        except queue.Empty:
            return True
        return False

    def join(self, coordinator: ScriptedCoordinator, code: str = "cuda = Cuda()") -> ProcessConnection:
        """Run code that makes the shim connect, and accept its hello."""
        self.start(code)
        process = coordinator.accept().welcome()
        self.result()
        return process

    def begin(self, process: ProcessConnection, epoch: int) -> None:
        """Permit a turn and make the call that begins it."""
        process.open(epoch)
        assert self.run("cuda.spin()") == 0

    def run_at_the_gate(self, process: ProcessConnection, epoch: int, code: str = "cuda.spin()") -> Any:
        """Run a line that waits at the gate until the test permits its turn."""
        self.start(code)
        process.wait_for_waiting_thread()
        assert self.is_running()
        process.open(epoch)
        return self.result()

    def end(self) -> str:
        """End the process by the end of its input, and return its standard error."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
            self.process.wait(WAIT_SECONDS)
        finally:
            self.process.kill()
            text = self.collect()
        return text


StartedClient = tuple[CudaClient, Any]


class NativeHost:
    """Host of one test: a simulated device, lock files, a coordinator's address and a log."""

    def __init__(self, root: Path, socket_folder: Path) -> None:
        self.root = root
        self.socket = socket_folder / "c.sock"
        self.log = root / "shim.log"
        self.lock_folder = root / "locks"
        self.simlog = root / "simlog"
        self.simlog.mkdir()
        self._clients: list[CudaClient] = []

    def environment(self, **more: str) -> dict[str, str]:
        if sanitizers.KIND and not more.get("LD_PRELOAD", "unset"):  # only the sanitizer that the driver is built with
            more |= sanitizers.preload()
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("GPUSHARE_", "LD_", "CUDA_"))
        }
        return (
            clean
            | sanitizers.preload(str(built_shim()))
            | {
                "LD_LIBRARY_PATH": str(simulated_driver().parent),
                "TEST_PTX": str(PTX),
                "GPUSHARE_SOCKET": str(self.socket),
                "GPUSHARE_LOCK_DIR": str(self.lock_folder),
                "GPUSHARE_LOG": "debug",
                "GPUSHARE_LOG_FILE": str(self.log),
                "GPUSHARE_SIM_STATE": str(self.root / "simulated"),
                "GPUSHARE_SIM_LOG": str(self.simlog),
                "GPUSHARE_SIM_STRICT_EXIT": "1",
            }
            | more
        )

    def client(self, python: str = sys.executable, **environment: str) -> CudaClient:
        client = CudaClient(self.environment(**environment), python)
        self._clients.append(client)
        return client

    def new_client(self, coordinator: ScriptedCoordinator, **environment: str) -> tuple[CudaClient, ProcessConnection]:
        """Start a client that initialises CUDA under the coordinator, with its gate closed."""
        client = self.client(**environment)
        return client, client.join(coordinator)

    def log_text(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def executions_are_over(self, count: int) -> bool:
        """Return whether the only client has executed `count` pieces of work and the device is idle now."""
        now = time.monotonic_ns()
        (executions,) = simlog.read_all(self.simlog).values()
        return len(executions) == count and all(execution.end_ns <= now for execution in executions)

    def is_throttled(self) -> bool:
        """Return whether the throttle is on, in the last turn of the only client."""
        lines = [line for line in self.log_text().splitlines() if "throttled: " in line or "opened the gate" in line]
        return bool(lines) and lines[-1].endswith("throttled: yes")

    def end(self) -> None:
        for client in self._clients:
            if client.process.poll() is None or not client.process.stdin.closed:  # type: ignore[union-attr]
                client.process.kill()
                client.end()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[NativeHost]:
    with tempfile.TemporaryDirectory(prefix="gpushare-t-") as folder:  # a socket's path is at most 107 bytes long
        host = NativeHost(tmp_path, Path(folder))
        yield host
        host.end()


@pytest.fixture
def coordinator(machine: NativeHost) -> Iterator[ScriptedCoordinator]:
    with scripted_coordinator(machine.socket) as scripted:
        yield scripted


@pytest.fixture
def started(machine: NativeHost, coordinator: ScriptedCoordinator) -> StartedClient:
    """Return a client that has initialised CUDA under the coordinator, with its gate closed."""
    client, process = machine.new_client(coordinator, GPUSHARE_CLIENT="one", GPUSHARE_TOKEN="secret")
    return client, process


@pytest.fixture
def client(started: tuple[CudaClient, ProcessConnection]) -> CudaClient:
    return started[0]


@pytest.fixture
def process(started: tuple[CudaClient, ProcessConnection]) -> ProcessConnection:
    return started[1]


def build_stub(folder: Path, symbols: Iterable[str] = ()) -> Path:
    """Build the driver of stubcuda.c with further symbols, and return the new folder with the library."""
    folder.mkdir()
    rest = folder / "rest.c"
    rest.write_text("".join(f"__attribute__((weak)) int {symbol}(void) {{ return 0; }}\n" for symbol in symbols))
    flags = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wall", "-Wextra", "-Werror"]
    library = str(folder / "libcuda.so.1")
    subprocess.run(["cc", *flags, "-o", library, str(HERE / "stubcuda.c"), str(rest)], check=True)
    return folder


@pytest.fixture
def stub(machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path) -> Any:
    """Return a function that starts clients on the driver of stubcuda.c.

    The arguments of the function are further symbols for the driver, and the environment of the client.
    """

    def start(symbols: Iterable[str] = (), **environment: str) -> tuple[CudaClient, ProcessConnection]:
        folder = tmp_path / "stub"
        if not folder.exists():
            build_stub(folder, symbols)
        client = machine.client(LD_LIBRARY_PATH=str(folder), **environment)
        process = client.join(coordinator, "cuda = Cuda(start=False); cuda.cuInit(0)")
        client.run(
            """
handle = c_uint64()
properties = (c_int * 16)(1, 0, 1, 0)
def create(size, location=1):
    properties[2] = location
    return cuda.cuMemCreate(byref(handle), c_size_t(size), properties, c_uint64(0))
def map_at(address, size):
    return cuda.cuMemMap(c_uint64(address), c_size_t(size), c_size_t(0), handle, c_uint64(0))
def unmap(address, size):
    return cuda.cuMemUnmap(c_uint64(address), c_size_t(size))
def release():
    return cuda.cuMemRelease(handle)
"""
        )
        return client, process

    return start
