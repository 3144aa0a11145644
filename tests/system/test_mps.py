"""Test of CUDA's Multi-Process Service under the shipped defaults, with a stand-in for its control daemon.

The simulated device works for colocated clients in time slices all the same.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from jupyter_gpushare.launch import mps

from ..support.mps_daemon import MpsDaemon
from .notebook_client import Notebook
from .system_host import GpuProgram, SystemHost, stop_all, wait_until

READ = f"[os.environ.get(name) for name in {(mps.PIPE_DIRECTORY, mps.ACTIVE_THREAD_PERCENTAGE)}]"
LAUNCH, PAUSE = 0.002, 0.006  # seconds, so that all clients together leave a part of the device's time
DOCTOR = "!{sys.executable} -m jupyter_gpushare doctor"


@pytest.fixture
def daemon(host: SystemHost, monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsDaemon]:
    """Start the stand-in, and name its pipe directory in the environment of notebooks."""
    running = MpsDaemon(host.folder / "mps")
    monkeypatch.setenv(mps.PIPE_DIRECTORY, str(running.directory))
    yield running
    running.crash()


def test_clients_that_run_together_use_a_control_daemon_that_runs(
    daemon: MpsDaemon, default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    host, pipe = default_settings_host, str(daemon.directory)

    def program(share: str) -> GpuProgram:
        made = host.run("--share", share, "--label", share, **{mps.PIPE_DIRECTORY: pipe})
        made.run("cuda = Cuda()")
        return made

    def all_run_together(*programs: GpuProgram) -> bool:
        phases = [client["phase"] for client in host.clients().values()]
        return phases == ["running"] * (1 + len(programs)) and host.worked_since(began, notebook.pid, *programs)

    notebook, half = start(), program("0.5")
    assert (notebook.value(READ), half.run(READ)) == ([pipe, None], [pipe, None])
    report = " ".join(notebook.run(DOCTOR).split())
    assert f"a control daemon runs (pid {os.getpid()}, {pipe})" in report
    assert "a fatal fault of one client ends the GPU work of all clients of the MPS server" in report
    began = time.monotonic_ns()
    work = notebook.start(f"while True: work({LAUNCH}, {LAUNCH}); time.sleep({PAUSE})")
    half.busy(launch=LAUNCH, pause=PAUSE)
    wait_until(lambda: all_run_together(half))

    host.command("config", "sharing", "packed")
    quarter = program("0.25")
    assert quarter.run(READ) == [pipe, "25"]
    assert half.run(READ) == [pipe, None], "CUDA fixes the percentage when a program starts"
    began = time.monotonic_ns()
    quarter.busy(launch=LAUNCH, pause=PAUSE)
    wait_until(lambda: all_run_together(half, quarter))
    host.command("config", "mps", "off")
    off = program("0.1")
    assert off.run(READ) == [mps.NO_DIRECTORY, None]
    stop_all(half, quarter)
    notebook.interrupt()
    notebook.finish(work)
