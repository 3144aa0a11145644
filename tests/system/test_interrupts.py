"""Tests of interrupts while a cell waits for the device: the cell ends, and the kernel is usable afterwards."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.cli import inspection

from .notebook_client import Notebook
from .system_host import HERE, MOST, GpuProgram, SystemHost, wait_until

WORK = "cuda.spin(1) or cuda.cuCtxSynchronize()"


def occupy_device(host: SystemHost) -> GpuProgram:
    """Start a client that has the device from now on."""
    program = host.program("other", part=MOST)
    program.busy()
    return program


def wait_until_waiting(host: SystemHost, label: str) -> None:
    wait_until(lambda: any(c["label"] == label and c["phase"] == "waiting" for c in host.clients().values()))


def is_at_gate(pid: int) -> bool:
    """Return whether a thread of the process waits at the gate, by its page, because a snapshot may be old."""
    page = inspection.read_page(pid)
    return page is not None and page["report"]["waiting"] > 0


@pytest.mark.parametrize("launcher", [False, True], ids=["provisioner", "launcher only"])
def test_stop_button_interrupts_a_waiting_cell(
    fcfs_host: SystemHost, start: Callable[..., Notebook], launcher: bool
) -> None:
    """The button works three times, at different moments of the wait, and then without the coordinator."""
    other = occupy_device(fcfs_host)
    notebook = start(fcfs_host.launcher_spec() if launcher else "python3-gpushare", setup=False)
    notebook.run(f"import sys; sys.path.insert(0, {str(HERE)!r}); from gpu_program import *; cuda = Cuda()")
    notebook.run(fcfs_host.allocation(MOST))
    label = next(c["label"] for c in fcfs_host.clients().values() if c["label"] != "other")
    for _ in range(3):
        request = notebook.start(WORK)
        wait_until_waiting(fcfs_host, label)
        wait_until(lambda: is_at_gate(notebook.pid))
        _interrupt(notebook, request)
    fcfs_host.kill_coordinator()
    request = notebook.start(WORK)
    wait_until(lambda: is_at_gate(notebook.pid))
    _interrupt(notebook, request)
    other.stop()
    assert notebook.run(WORK).strip() == "0"


def _interrupt(notebook: Notebook, request: str) -> None:
    """Interrupt the cell, which would wait for an hour."""
    notebook.interrupt()
    reply = notebook.finish(request)
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert notebook.run("print(1 + 1)") == "2\n"
