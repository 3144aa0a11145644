"""Tests of the server's interrupts of kernels whose turn does not end."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.server.kernel_services.overrun_interrupts import OverrunInterrupter
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import default_coordinator_argv, ensure_coordinator_async

from ..driver_facts.harness import PTX
from ..system.notebook_client import SETUP
from .conftest import Coordinator

WAIT = 60.0


@pytest.fixture
def notebook(kernelspec: Any, create: Any, channels: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that starts a shared Python kernel of the server.

    The result is the kernel's id and `execute`, which returns the reply to a cell.
    """
    shipped = kernel_env.PACKAGE / "kernelspec" / "python3-gpushare" / "kernel.json"
    kernelspec("python3-gpushare", **json.loads(shipped.read_text()))
    monkeypatch.setenv("TEST_PTX", str(PTX))

    async def start() -> tuple[str, Any]:
        kernel_id = await create("kernels", name="python3-gpushare")
        client = await channels(kernel_id)

        async def execute(code: str) -> dict[str, Any]:
            return dict((await client.execute_interactive(code, timeout=WAIT, output_hook=print))["content"])

        assert (await execute(SETUP))["status"] == "ok"
        return kernel_id, execute

    return start


async def test_overrun_is_interrupted_by_the_server_of_the_kernel(
    notebook: Any, coordinator: Coordinator, wait_until: Any, tmp_path: Path
) -> None:
    """The loop ends at once with the stop button's exception, and the turn ends with the work on the GPU."""
    options = ["--GpuShare.overrun=interrupt", "--GpuShare.overrun_patience=0", "--GpuShare.time_quantum=0.1"]
    options += ["--GpuShare.sharing=exclusive"]
    await ensure_coordinator_async(coordinator.path, [*default_coordinator_argv(simulate=True), *options], wait=WAIT)
    stuck, execute = await notebook()
    other, execute_other = await notebook()
    await execute("check(cuda.hold())")
    loop = asyncio.ensure_future(
        execute(f"open({str(tmp_path / 'inside')!r}, 'w').close()\nwhile True: time.sleep(0.05)")
    )
    await wait_until((tmp_path / "inside").exists, "a loop that an interrupt reaches")
    waiting = asyncio.ensure_future(execute_other("work(0)"))
    reply = await loop
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    status = await coordinator.request(messages.Status())
    states = {client["id"]: (client["interrupt_requested"], client["phase"]) for client in status["clients"]}
    assert states == {stuck: (True, "overrun"), other: (False, "waiting")}
    assert (await execute("cuda.release()"))["status"] == "ok"
    assert (await waiting)["status"] == "ok"
    assert (await execute("work(0)"))["status"] == "ok", "the kernel must continue to work"


class FakeKernels:
    """Fake of `Kernels`: kernel k1 is client c1, and so on; an interrupt of k2 fails."""

    def __init__(self) -> None:
        self.interrupted: list[str] = []

    def of_clients(self, clients: set[str], status: dict[str, Any]) -> list[str]:
        return sorted(client.replace("c", "k") for client in clients)

    async def interrupt(self, kernel_id: str) -> None:
        self.interrupted.append(kernel_id)
        if kernel_id == "k2":
            raise RuntimeError("it has just ended")


async def test_overrun_is_interrupted_once_a_turn(wait_until: Any, caplog: pytest.LogCaptureFixture) -> None:
    kernels = FakeKernels()
    interrupter = OverrunInterrupter(kernels, logging.getLogger("test"))  # type: ignore[arg-type]

    def follow(*requested: str) -> None:
        clients = [{"id": name, "interrupt_requested": name in requested} for name in ("c1", "c2")]
        interrupter.on_snapshot(None, {"clients": clients})

    follow("c1")
    follow("c1", "c2")
    follow("c1", "c2")
    await wait_until(lambda: kernels.interrupted == ["k1", "k2"], "one interrupt of each")
    await wait_until(lambda: "could not interrupt kernel k2: it has just ended" in caplog.text, "a line in the log")
    follow()
    follow("c1")
    await wait_until(lambda: kernels.interrupted == ["k1", "k2", "k1"], "another interrupt in another turn")
    interrupter.close()
