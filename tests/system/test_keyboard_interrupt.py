"""Stopping what waits for the GPU, with the settings as shipped: KeyboardInterrupt, and nothing else."""

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
from .test_interrupts import stands_at_the_gate

PROMPTLY = 5.0  # seconds
MOST = 200 << 20  # bytes, of 256 MiB: what two clients have does not fit together, so they take turns

# How programs reach CUDA: one call on `array`, and what makes an exception of its error.
SETUP = f"""
import ctypes, sys
sys.path[:0] = {[str(HERE), str(built_extension(include_folder() or Path()).parent)]}
from gpu_program import *
import raising
from cuda.bindings import driver
cuda = Cuda()
error, array = cuda.alloc({MOST})
check(error)
def check_binding(result):
    if result[0] != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"CUDA error {{result[0]}}")
def contents():
    there = (ctypes.c_char * 4096)()
    check(cuda.cuMemcpyDtoH_v2(there, c_uint64(array), c_size_t(4096)))
    return there.raw == there.raw[:1] * 4096 and there.raw[0]
check(cuda.cuMemsetD8_v2(c_uint64(array), 7, c_size_t({MOST})))
assert contents() == 7
"""
CALLS = {
    "ctypes": "check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t(4096)))",
    "cuda-bindings": "check_binding(driver.cuMemsetD8(array, 1, 4096))",
    "a library that raises": "raising.set(array, 1, 4096)",
    "in a cell that awaits": "await asyncio.sleep(0); raising.set(array, 1, 4096); await asyncio.sleep(0)",
}


def neighbour(host: SystemHost) -> GpuProgram:
    """Has the device from now on, for a minute, and memory beside which no other client's has room."""
    program = host.program("neighbour")
    program.run(f"check(cuda.alloc({MOST})[0]); check(cuda.spin(60000))")
    wait_until(lambda: host.phase("neighbour") == "running")
    return program


def stop(notebook: Notebook, code: str) -> dict[str, Any]:
    """Run a cell, and stop it when it waits; the reply."""
    request = notebook.start(code)
    wait_until(lambda: stands_at_the_gate(notebook.pid))
    notebook.interrupt()
    return notebook.finish(request, PROMPTLY)


def test_a_cell_shows_keyboard_interrupt_and_nothing_else(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """However CUDA is reached. Then the next cells run, and the memory is as it was."""
    notebook = start("python3-gpushare", setup=False)
    notebook.run("import asyncio\n" + SETUP)
    other = neighbour(default_settings_host)
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
    """A plain script under `jupyter gpushare run`."""
    path = host.folder / "script.py"
    path.write_text(SETUP + "print('ready', flush=True)\nsys.stdin.readline()\n" + text)
    argv = [sys.executable, "-m", "jupyter_gpushare", "run", "--", sys.executable, str(path)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(argv, env=host.environment(), text=True, **pipes)
    assert process.stdout and process.stdin
    assert process.stdout.readline() == "ready\n"
    neighbour(host)
    process.stdin.write("\n")
    process.stdin.flush()
    wait_until(lambda: stands_at_the_gate(process.pid))
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
    """At the first one asyncio's own handler cancels the task, which goes no further than its next await."""
    with script(
        default_settings_host,
        """
import asyncio
async def work():
    raising.set(array, 1, 4096)
try:
    asyncio.run(work())
except KeyboardInterrupt as error:
    print("KeyboardInterrupt", error.__context__)
""",
    ) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)  # it waits on; two signals at once would be one
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT)
        assert (output, errors, process.returncode) == ("KeyboardInterrupt None\n", "", 0)
