"""Tests of the interrupt of code that waits for the GPU, with the shipped settings: only KeyboardInterrupt appears."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..native.extension import built_extension, include_folder
from .notebook_client import Notebook
from .system_host import HERE, WAIT, GpuProgram, SystemHost, wait_until
from .test_interrupts import is_at_gate

ARRAY_BYTES = 200 << 20  # of 256 MiB, so that the arrays of two clients do not fit together

# Memory of the program, and functions that raise an exception for an error of a call.
SETUP = f"""
import ctypes, sys
sys.path[:0] = {[str(HERE), str(built_extension(include_folder() or Path()).parent)]}
from gpu_program import *
import raising
from cuda.bindings import driver
cuda = Cuda()
error, array = cuda.alloc({ARRAY_BYTES})
check(error)
def check_binding(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA error {{result[0]}}")
def contents():
    data = (ctypes.c_char * 4096)()
    check(cuda.cuMemcpyDtoH_v2(data, c_uint64(array), c_size_t(4096)))
    return data.raw == data.raw[:1] * 4096 and data.raw[0]
check(cuda.cuMemsetD8_v2(c_uint64(array), 7, c_size_t({ARRAY_BYTES})))
assert contents() == 7
"""
# Ways in which programs call CUDA: a call on `array`, and code that raises an exception for its error.
CALLS = {
    "ctypes": "check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t(4096)))",
    "cuda-bindings": "check_binding(driver.cuMemsetD8(array, 1, 4096))",
    "a library that raises": "raising.set(array, 1, 4096)",
    "in a cell that awaits": "await asyncio.sleep(0); raising.set(array, 1, 4096); await asyncio.sleep(0)",
}


def occupy_device(host: SystemHost) -> GpuProgram:
    """Start a client that has the device for ten minutes, with memory that leaves no room for another client."""
    program = host.program("other")
    program.run(f"check(cuda.alloc({ARRAY_BYTES})[0]); check(cuda.spin(600_000))")
    wait_until(lambda: host.phase("other") == "running")
    return program


def stop(notebook: Notebook, code: str) -> dict[str, Any]:
    """Run a cell, interrupt it when it waits, and return the reply."""
    request = notebook.start(code)
    wait_until(lambda: is_at_gate(notebook.pid))
    notebook.interrupt()
    return notebook.finish(request)


def test_a_cell_shows_keyboard_interrupt_and_nothing_else(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """Every way to call CUDA raises KeyboardInterrupt. Then the next cells run, and the memory is unchanged."""
    notebook = start("python3-gpushare", setup=False)
    notebook.run("import asyncio\n" + SETUP)
    other = occupy_device(default_settings_host)
    for call in CALLS.values():
        reply = stop(notebook, call)
        assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt"), reply
        text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(reply["traceback"]))
        assert set(re.findall(r"\w+(?:Error|Exception|Interrupt)\b", text)) == {"KeyboardInterrupt"}, text
        assert "During handling" not in text and "direct cause" not in text
        assert notebook.run("print(1 + 1)") == "2\n"
    other.end()
    assert notebook.value("contents()") == 7
    for call in CALLS.values():
        notebook.run(call)
    assert notebook.value("contents()") == 1


def script(host: SystemHost, text: str) -> subprocess.Popen[str]:
    """Start a plain script under `jupyter gpushare run`, and interrupt it when it waits at the gate."""
    path = host.folder / "script.py"
    path.write_text(SETUP + "print('ready', flush=True)\nsys.stdin.readline()\n" + text)
    argv = [sys.executable, "-m", "jupyter_gpushare", "run", "--", sys.executable, str(path)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(argv, env=host.environment(), text=True, **pipes)
    assert process.stdout and process.stdin
    assert process.stdout.readline() == "ready\n"
    occupy_device(host)
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: is_at_gate(process.pid))
    process.send_signal(signal.SIGINT)
    return process


@pytest.mark.parametrize("name", [name for name in CALLS if "await" not in name])
def test_a_plain_script_catches_keyboard_interrupt(default_settings_host: SystemHost, name: str) -> None:
    with script(
        default_settings_host,
        f"""
try:
    {CALLS[name]}
except RuntimeError:
    print("RuntimeError")
except KeyboardInterrupt as error:
    print("KeyboardInterrupt", error.__context__)
""",
    ) as process:
        output, errors = process.communicate(timeout=WAIT)
        assert (output, errors, process.returncode) == ("KeyboardInterrupt None\n", "", 0)


def test_the_second_interrupt_ends_a_wait_under_asyncio_run(default_settings_host: SystemHost) -> None:
    """At the first interrupt, asyncio's own handler cancels the task, which only takes effect at the next await."""
    with script(
        default_settings_host,
        """
import asyncio
class Task(asyncio.Task):
    def cancel(self, *options):
        print("cancelled", flush=True)
        return super().cancel(*options)
asyncio.tasks.Task = Task
async def work():
    raising.set(array, 1, 4096)
try:
    asyncio.run(work())
except KeyboardInterrupt as error:
    print("KeyboardInterrupt", error.__context__)
""",
    ) as process:
        assert process.stdout and process.stdout.readline() == "cancelled\n"  # two signals at once would count as one
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT)
        assert (output, errors, process.returncode) == ("KeyboardInterrupt None\n", "", 0)
