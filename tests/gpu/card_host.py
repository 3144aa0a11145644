"""Host of the tests on a card: a coordinator, a rival that keeps taking turns, and a filler that makes memory short.

`DRIVER=gpu` selects the card, as for the driver facts; otherwise the device is simulated and everything is smaller.

Managed memory beyond the free memory of a card can hang the card.
In mode `unified`, both working sets together therefore have at most two thirds of the free memory.
Memory is short there by the setting `device_memory`, and in mode `swap` by the plain memory of the filler.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire.client import CoordinatorError

from ..driver_facts.harness import IS_GPU, ROOT, simulated_driver
from ..support.polling import wait_until
from ..system.system_host import HERE, MIB, GpuProgram, SystemHost

GIB = 1024 * MIB
PROGRAMS = Path(__file__).resolve().parent / "programs"
PYTHON = os.environ.get("GPUSHARE_TEST_PYTHON", sys.executable)  # the Python with the frameworks
# Stand-ins for the CUDA libraries, without computation, for PyTorch on the simulated device (native/simcudart).
STAND_INS = os.environ.get("GPUSHARE_TEST_STAND_INS", str(ROOT / "build" / "simcudart"))
MODES = ("unified", "swap")

WORKING_SET = (2048 if IS_GPU else 96) * MIB  # of each of two programs
FRAMEWORK_SET = (2048 if IS_GPU else 256) * MIB  # the same for programs with frameworks, which have memory of their own
BALLAST = FRAMEWORK_SET if IS_GPU else FRAMEWORK_SET * 3 // 4
QUANTUM = "0.5" if IS_GPU else "0.1"  # seconds
LOG_LINES = 100
WAIT = 60.0  # seconds for a step of a program whose turns alternate with those of the rival

MEMORY_CODE = """
def hold(size, value):
    status, address = cuda.alloc(size)
    check(status)
    check(cuda.cuMemsetD32_v2(c_uint64(address), value, c_size_t(size // 4)))
    check(cuda.cuCtxSynchronize())
    return address
def words(address, size):
    data = (c_char * 4)()
    found = set()
    for at in (0, size // 8 * 4, size - 4):
        check(cuda.cuMemcpyDtoH_v2(data, c_uint64(address + at), c_size_t(4)))
        found.add(int.from_bytes(data.raw, "little"))
    return sorted(found)
def fill(leave):
    free, _ = cuda.info()
    if free > leave:
        check(cuda.alloc((free - leave) // (2 << 20) * (2 << 20))[0])
    return cuda.info()[0]
"""


class CardHost(SystemHost):
    """Host with the real card, or with a simulated one."""

    is_simulated = not IS_GPU

    def __init__(self, folder: Path, working_set: int = WORKING_SET) -> None:
        super().__init__(folder, memory=2 * GIB)
        self.working_set = working_set
        self.room = working_set * 3 // 2  # for two working sets, so that they do not fit together
        self.safe_room = 3 * working_set  # free memory that managed memory of both programs needs

    def environment(self, **more: str) -> dict[str, str]:
        model = self.folder / "device"
        return super().environment(**({"GPUSHARE_SIM_CONFIG": str(model)} if model.exists() else {}), **more)

    def print_logs(self) -> None:
        """Print the ends of the logs, which the report of a failed test has."""
        for log in (self.folder / "coordinator.log", self.log):
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            print(f"{log.name}:", *lines[-LOG_LINES:], sep="\n")

    def print_stacks(self) -> None:
        """Print the clients, the pages of the programs and, if the machine has a debugger, their stacks."""
        with contextlib.suppress(CoordinatorError, OSError):
            print("clients:", json.dumps(self.clients(), indent=1))
        for program in self._programs:
            with contextlib.suppress(AssertionError, OSError):
                print(f"page of {program.pid}:", json.dumps(self.page(program)))
        debugger = shutil.which("gdb") or shutil.which("cuda-gdb")
        for program in self._programs if debugger else ():
            if program.process.poll() is None:
                command = [str(debugger), "--batch", "--pid", str(program.pid), "-ex", "thread apply all backtrace 16"]
                with contextlib.suppress(subprocess.TimeoutExpired):
                    done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False)
                    print(f"stacks of {program.pid}:", done.stdout, sep="\n")

    def slow_down_restores(self) -> None:
        """Let a restore of a working set take some tenths of a second on a simulated device, as on a card."""
        if self.is_simulated:
            (self.folder / "device").write_text("[device]\nh2d_bandwidth = 100MiB/s\n")

    def begin(self, mode: str) -> None:
        """Start a coordinator for clients of this memory mode."""
        cap = ("--device-memory", str(self.room)) if mode == "unified" else ()
        turns = ("--policy", "fcfs", "--sharing", "exclusive", "--idle-release", "0.25", "--time-quantum", QUANTUM)
        self.start_coordinator(*turns, *cap)

    def card_program(self, client: str, mode: str = "", cuda: bool = True) -> GpuProgram:
        """Start a program of a client that can `hold` memory, or without the shim if `client` is empty."""
        if client:
            program = self.program(client, cuda=cuda, **({"GPUSHARE_MEMORY_MODE": mode} if mode else {}))
        else:
            program = self._keep(GpuProgram([sys.executable, str(HERE / "gpu_program.py")], self.bare_environment()))
            if cuda:
                program.run("cuda = Cuda()", WAIT)
        program.run(MEMORY_CODE)
        return program

    def framework(self, client: str, module: str, mode: str = "", **more: str) -> GpuProgram:
        """Start the Python with the frameworks, and import a file of `programs/`; skip the test without them."""
        if mode:
            more["GPUSHARE_MEMORY_MODE"] = mode
        if self.is_simulated and client:
            more["LD_LIBRARY_PATH"] = STAND_INS
        elif self.is_simulated:
            more["LD_LIBRARY_PATH"] = f"{STAND_INS}:{simulated_driver().parent}"
        env = self.client_environment(client, **more) if client else self.bare_environment(**more)
        program = self._keep(GpuProgram([PYTHON, str(HERE / "gpu_program.py")], env))
        program.start(f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); import {module} as program")
        import_module(program, module)
        return program

    def bare_environment(self, **more: str) -> dict[str, str]:
        """Return the environment of a program without the shim."""
        if self.is_simulated:
            more.setdefault("LD_LIBRARY_PATH", str(simulated_driver().parent))
        return self.environment(**more)

    def make_memory_short(self, mode: str) -> None:
        """Fill the card with plain memory of a program without the shim. Contexts must exist already."""
        leave = self.safe_room if mode == "unified" else self.room
        free = self.card_program("").run(f"fill({leave})", WAIT)
        if free < leave - 2 * MIB:
            pytest.skip(f"needs {leave // MIB} MiB of free memory on the card, which has {free // MIB}")

    def start_rival(self, mode: str, size: int | None = None, is_short: bool = False) -> GpuProgram:
        """Start a client that keeps taking turns and holds `size` bytes, by default a working set.

        With `is_short`, make memory short before.
        """
        size = self.working_set if size is None else size
        rival = self.card_program("rival", mode)
        if is_short:
            self.make_memory_short(mode)
        if size:
            rival.start(f"array = hold({size}, 5)")
            rival.result(WAIT)
        rival.busy()
        return rival

    def stop_rival(self, rival: GpuProgram, size: int | None = None) -> None:
        """End the work of the rival, and assert that its results and its memory are right."""
        size = self.working_set if size is None else size
        result = rival.run("busy.stop()", WAIT)
        assert (result["wrong"], result["failure"]) == (0, "")
        assert result["launches"] > 0
        if size:
            assert rival.run(f"words(array, {size})", WAIT) == [5]

    def turns(self, client: str) -> int:
        return int(self.clients()[client]["turn_count"])

    def wait_for_turn(self, client: str) -> None:
        """Wait for the client's next turn."""
        before = self.turns(client)
        wait_until(lambda: self.turns(client) > before, WAIT, what=f"the next turn of {client}")

    def wait_for_eviction(self, client: str) -> None:
        """Wait until memory of an idle client has left the device for the rival."""
        wait_until(
            lambda: self.clients()[client]["resident"] < self.clients()[client]["allocated"],
            WAIT,
            what=f"an eviction of {client}",
        )

    def moved_bytes(self, client: str, way: str = "evicted") -> int:
        """Return the bytes of a client that were evicted, or `restored`, so far."""
        return sum(process[way]["bytes"] for process in self.clients()[client]["processes"])

    def is_at_gate(self, program: GpuProgram) -> bool:
        return bool(self.page(program)["waiting"])


def import_module(program: GpuProgram, module: str) -> None:
    """Wait for the import of a program's module, and skip the test if a framework is missing."""
    answer = program.raw(WAIT)
    if answer.get("error") in ("ImportError", "ModuleNotFoundError", "Unavailable", "OSError"):
        pytest.skip(f"{module}: {answer['text'].splitlines()[0]}")
    assert "error" not in answer, answer


def steps(program: GpuProgram, count: int) -> list[float]:
    """Make steps of a framework's program, and return its results."""
    found: list[Any] = program.run(f"[float(program.step()) for _ in range({count})]", WAIT)
    return found
