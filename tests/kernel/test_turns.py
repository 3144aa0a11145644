"""Notebooks that share the simulated device: what their users notice of each other's cells."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .programs import SETUP

pytestmark = pytest.mark.usefixtures("own_device")


@pytest.fixture
def notebooks(coordinator: Any, start: Callable[..., Any]) -> tuple[Any, Any]:
    """Two notebooks with the device initialised, in that order."""
    pair = start(env={"JPY_SESSION_NAME": "one.ipynb"}), start(env={"JPY_SESSION_NAME": "two.ipynb"})
    for notebook in pair:
        ran = notebook.run(SETUP)
        assert ran.status == "ok", ran
    return pair


def phase(coordinator: Any, notebook: Any) -> str:
    return str(coordinator.clients()[notebook.manager.kernel_id]["phase"])


def test_the_device_passes_on_when_a_cell_ends(coordinator: Any, notebooks: tuple[Any, Any]) -> None:
    one, other = notebooks
    one.run("work(0.1)")
    began = time.monotonic()
    assert other.run("work(0.01)").status == "ok"
    assert time.monotonic() - began < 5  # the quantum is 30 s


@pytest.mark.alone  # where other tests run, a cell may come later than its kernel lingers
def test_run_all_keeps_its_turn_beside_a_busy_neighbour(
    coordinator: Any, notebooks: tuple[Any, Any], eventually: Callable[..., Any]
) -> None:
    one, other = notebooks
    busy = other.kernel.execute("while True: work(0.02)")
    eventually(lambda: phase(coordinator, other) == "running")
    before = coordinator.clients()[one.manager.kernel_id]["quanta"]
    coordinator.set(time_quantum=0.5)
    last = [one.kernel.execute("work(0.002)") for _ in range(50)][-1]
    one.reply_to(last)
    assert coordinator.clients()[one.manager.kernel_id]["quanta"] - before <= 4
    other.manager.interrupt_kernel()
    assert other.reply_to(busy)["ename"] == "KeyboardInterrupt"


@pytest.mark.parametrize("coordinator_gone", [False, True])
def test_an_interrupt_reaches_a_cell_that_waits_for_the_device(
    coordinator: Any, notebooks: tuple[Any, Any], eventually: Callable[..., Any], coordinator_gone: bool
) -> None:
    one, other = notebooks
    one.kernel.execute("while True: work(0.02)")
    eventually(lambda: phase(coordinator, one) == "running")
    waiting = other.kernel.execute("work(0.01)")
    eventually(lambda: phase(coordinator, other) == "waiting")
    if coordinator_gone:
        coordinator.end()
    began = time.monotonic()
    other.manager.interrupt_kernel()
    reply = other.reply_to(waiting)
    assert time.monotonic() - began < 5  # the neighbour's turn lasts 30 s; a busy machine may need one to say so
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert other.value("1 + 1") == 2
    one.manager.interrupt_kernel()
    assert other.run("work(0.01)").status == "ok"  # with a coordinator that the kernels brought back, or by locks


def test_release_gives_up_the_turn(
    coordinator: Any, notebooks: tuple[Any, Any], eventually: Callable[..., Any]
) -> None:
    one, other = notebooks
    one.kernel.execute("work(0.01)\n%gpushare release\nimport time\nwhile True: time.sleep(0.01)")
    began = time.monotonic()
    assert other.run("work(0.01)").status == "ok"
    assert time.monotonic() - began < 5
    one.manager.interrupt_kernel()


def test_status_tells_who_waits(
    coordinator: Any, notebooks: tuple[Any, Any], eventually: Callable[..., Any], tmp_path: Path
) -> None:
    one, other = notebooks
    one.kernel.execute("import os\nwhile not os.path.exists('go'): work(0.02)\n%gpushare")
    eventually(lambda: phase(coordinator, one) == "running")
    other.kernel.execute("work(0.01)")
    eventually(lambda: phase(coordinator, other) == "waiting")
    (tmp_path / "go").touch()
    message = {"msg_type": ""}
    while message["msg_type"] != "display_data":
        message = one.kernel.get_iopub_msg(timeout=20)
    text = message["content"]["data"]["text/plain"]
    assert re.search(r"state +running · up to \d+ s left", text), text
    assert "running  one.ipynb (this kernel)" in text and "#1  waiting  two.ipynb" in text
    assert "imulated" in text


def test_a_killed_kernel_frees_the_device(
    coordinator: Any, notebooks: tuple[Any, Any], eventually: Callable[..., Any]
) -> None:
    one, other = notebooks
    one.kernel.execute("while True: work(0.02)")
    eventually(lambda: phase(coordinator, one) == "running")
    waiting = other.kernel.execute("work(0.01)")
    eventually(lambda: phase(coordinator, other) == "waiting")
    began = time.monotonic()
    os.kill(one.pid, signal.SIGKILL)
    assert other.reply_to(waiting)["status"] == "ok"
    assert time.monotonic() - began < 5


def test_restarts_leave_nothing_behind(coordinator: Any, start: Callable[..., Any]) -> None:
    notebook = start()
    counts = []
    for _ in range(6):
        assert notebook.run(SETUP).status == "ok"
        notebook.manager.restart_kernel(now=True)
        notebook.kernel.wait_for_ready(timeout=30)
        counts.append(len(os.listdir(f"/proc/{coordinator.pid}/fd")))
    assert len(coordinator.clients()) == 1
    assert counts[-1] <= counts[1]
