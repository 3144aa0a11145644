"""Interrupts while waiting for the device: at once, and the program is usable afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare import inspection

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
    page = inspection.page_of(pid)
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


def test_a_program_under_run(patient: Host) -> None:
    """SIGINT raises KeyboardInterrupt in it; again without the coordinator; then its work is done."""
    other = neighbour(patient)
    program = patient.run("--label", "mine", GPUSHARE_COORDINATOR_ARGV='["false"]')
    program.run("cuda = Cuda()")
    for gone in (False, True):
        if gone:
            patient.kill_coordinator()
        program.start(WORK)
        eventually(lambda: stands_at_the_gate(program.pid))
        began = time.monotonic()
        program.send(signal.SIGINT)
        assert program.raw()["error"] == "KeyboardInterrupt"
        assert time.monotonic() - began < LONG
        assert program.run("1 + 1") == 2
    other.stop()
    assert program.run(WORK) == 0


def test_a_program_with_a_handler_of_its_own_under_run(patient: Host) -> None:
    """Python runs the handler at once. It raises nothing, so the wait goes on, and the call is made in its turn."""
    other = neighbour(patient)
    program = patient.run("--label", "mine")
    program.run("signal.signal(signal.SIGINT, lambda *_: os.write(2, b'caught\\n')); cuda = Cuda()")
    program.start(WORK)
    eventually(lambda: stands_at_the_gate(program.pid))
    program.send(signal.SIGINT)
    eventually(lambda: program.errors == ["caught\n"])
    assert stands_at_the_gate(program.pid)
    assert patient.executions(program) == []
    other.stop()
    assert program.result() == 0


def test_a_program_with_a_handler_that_is_not_python_s_under_run(patient: Host) -> None:
    """As in C: the handler runs, the call returns an error and was not made, and can be made again."""
    other = neighbour(patient)
    program = patient.run("--label", "mine")
    program.run("import ctypes; ctypes.CDLL(None).signal(2, ctypes.CDLL(None).abs); cuda = Cuda()")
    program.start(WORK)
    waits(patient, "mine")
    began = time.monotonic()
    program.send(signal.SIGINT)
    assert program.result() == 304  # CUDA_ERROR_OPERATING_SYSTEM
    assert time.monotonic() - began < LONG
    eventually(lambda: patient.phase(next(c for c in patient.clients() if c != "neighbour")) == "idle")
    assert patient.executions(program) == []
    program.start(WORK)
    waits(patient, "mine")
    other.stop()
    assert program.result() == 0


def test_a_program_without_a_handler_is_ended_by_sigint(patient: Host) -> None:
    neighbour(patient)
    program = patient.run("--label", "mine")
    program.run("signal.signal(signal.SIGINT, signal.SIG_DFL); cuda = Cuda()")
    program.start(WORK)
    waits(patient, "mine")
    program.send(signal.SIGINT)
    assert program.process.wait(1) == -signal.SIGINT
    eventually(lambda: patient.status()["devices"][0]["queue"] == [])


def test_exit_status_and_signals_of_run_are_the_program_s(patient: Host) -> None:
    assert patient.command("run", "--", sys.executable, "-c", "raise SystemExit(7)").returncode == 7
    assert patient.command("run", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert patient.command("run", "--", "no-such-program-here").returncode == 127
    done = patient.command("run", "--share", "2", "--", "true")
    assert done.returncode == 2
    assert "share=2 is out of range" in done.stderr
    argv = [sys.executable, "-m", "jupyter_gpushare", "run", "--", "sleep", "60"]
    with subprocess.Popen(argv, env=patient.environment()) as process:
        eventually(lambda: patient.clients())
        eventually(lambda: b"sleep" in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")[0])
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM
