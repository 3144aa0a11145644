"""Interrupts while waiting for the device: at once, and the program is usable afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.cli import inspection

from .notebook_client import Notebook
from .system_host import HERE, GpuProgram, SystemHost, wait_until

LONG = 5  # seconds: the neighbour's turn lasts twenty
WORK = "cuda.spin(1) or cuda.cuCtxSynchronize()"


def neighbour(host: SystemHost) -> GpuProgram:
    """Has the device from now on."""
    program = host.program("neighbour")
    program.busy()
    return program


def waits(host: SystemHost, label: str) -> None:
    wait_until(lambda: any(c["label"] == label and c["phase"] == "waiting" for c in host.clients().values()))


def stands_at_the_gate(pid: int) -> bool:
    """By its own page: without a coordinator there is nobody to ask, and with one its word may be old."""
    page = inspection.read_page(pid)
    return page is not None and page["report"]["waiting"] > 0


@pytest.mark.parametrize("launcher", [False, True], ids=["provisioner", "launcher only"])
def test_stop_button_interrupts_a_waiting_cell(
    long_quantum_host: SystemHost, start: Callable[..., Notebook], launcher: bool
) -> None:
    """Three times, at different moments of the wait; then without the coordinator."""
    other = neighbour(long_quantum_host)
    notebook = start(long_quantum_host.launcher_spec() if launcher else "python3-gpushare", setup=False)
    notebook.run(f"import sys; sys.path.insert(0, {str(HERE)!r}); from gpu_program import *; cuda = Cuda()")
    label = next(c["label"] for c in long_quantum_host.clients().values() if c["label"] != "neighbour")
    for _ in range(3):
        request = notebook.start(WORK)
        waits(long_quantum_host, label)
        wait_until(lambda: stands_at_the_gate(notebook.pid))
        _interrupted(notebook, request)
    long_quantum_host.kill_coordinator()
    request = notebook.start(WORK)
    wait_until(lambda: stands_at_the_gate(notebook.pid))
    _interrupted(notebook, request)
    other.stop()
    assert notebook.run(WORK).strip() == "0"


def _interrupted(notebook: Notebook, request: str) -> None:
    began = time.monotonic()
    notebook.interrupt()
    reply = notebook.finish(request)
    assert time.monotonic() - began < LONG
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert notebook.run("print(1 + 1)") == "2\n"
