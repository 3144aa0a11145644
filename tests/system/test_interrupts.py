"""Interrupts while waiting for the device: at once, and the program is usable afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from jupyter_gpushare.cli import inspection

from .host import HERE, Host, Program, eventually
from .notebook import Notebook

LONG = 5  # seconds: the neighbour's turn lasts twenty
WORK = "cuda.spin(1) or cuda.cuCtxSynchronize()"


def neighbour(host: Host) -> Program:
    """Has the device from now on."""
    program = host.program("neighbour")
    program.busy()
    return program


def waits(host: Host, label: str) -> None:
    eventually(lambda: any(c["label"] == label and c["phase"] == "waiting" for c in host.clients().values()))


def stands_at_the_gate(pid: int) -> bool:
    """By its own page: without a coordinator there is nobody to ask, and with one its word may be old."""
    page = inspection.read_page(pid)
    return page is not None and page["report"]["waiting"] > 0


@pytest.mark.parametrize("launcher", [False, True], ids=["provisioner", "launcher only"])
def test_the_stop_button(patient: Host, start: Callable[..., Notebook], launcher: bool) -> None:
    """Three times, at different moments of the wait; then without the coordinator."""
    other = neighbour(patient)
    notebook = start(patient.launcher_spec() if launcher else "python3-gpushare", setup=False)
    notebook.run(f"import sys; sys.path.insert(0, {str(HERE)!r}); from program import *; cuda = Cuda()")
    label = next(c["label"] for c in patient.clients().values() if c["label"] != "neighbour")
    for _ in range(3):
        request = notebook.start(WORK)
        waits(patient, label)
        eventually(lambda: stands_at_the_gate(notebook.pid))
        _interrupted(notebook, request)
    patient.kill_coordinator()
    request = notebook.start(WORK)
    eventually(lambda: stands_at_the_gate(notebook.pid))
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
