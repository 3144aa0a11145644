"""Tests of the server's reports of cells for kernels in other languages."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

KERNEL = """
import pathlib, sys, time
from ipykernel.kernelapp import IPKernelApp
from pytest_jupyter.echo_kernel import EchoKernel

class Slow(EchoKernel):
    def do_execute(self, code, *args, **options):
        while not pathlib.Path(code).exists():
            time.sleep(0.01)
        return {"status": "ok", "execution_count": 1, "payload": [], "user_expressions": {}}

IPKernelApp.launch_instance(kernel_class=Slow)
"""


@pytest.fixture
def kernel(kernelspec: Any, create: Any, channels: Any, coordinator: Any) -> Any:
    """Return a function that starts a shared kernel of a language.

    The code of a cell is a path, and the cell ends when a file with this path exists.
    """

    async def start(language: str) -> tuple[str, Any]:
        argv = [sys.executable, "-c", KERNEL, "-f", "{connection_file}"]
        env = {"GPUSHARE_CLIENT": f"a-kernel-of-{language}", "GPUSHARE_TOKEN": "secret"}
        kernel_id = await create("kernels", name=kernelspec(language, argv=argv, language=language, env=env))
        return kernel_id, await channels(kernel_id)

    return start


def cells(coordinator: Any, number: int) -> Callable[[], Awaitable[bool]]:
    """Return a condition that is true while `number` cells of the only client run."""

    async def condition() -> bool:
        status = await coordinator.request(messages.Status())
        return [one["cells"] for one in status["clients"]] == [number]

    return condition


async def run_first_cell(
    kernel: Any, coordinator: Any, extension: Any, wait_until: Any, folder: Path
) -> tuple[str, Any]:
    """Start a kernel, run a cell until the file `first` is there, and return the kernel's id and client."""
    await coordinator.start()
    kernel_id, client = await kernel("julia")
    await wait_until(lambda: kernel_id in extension.cell_reporter.watched, "a listener")
    client.execute(str(folder / "first"))
    await wait_until(cells(coordinator, 1), "a cell")
    return kernel_id, client


async def test_a_cell_counts_from_busy_to_idle(
    kernel: Any, coordinator: Any, extension: Any, wait_until: Any, tmp_path: Path, jp_fetch: Any
) -> None:
    kernel_id, client = await run_first_cell(kernel, coordinator, extension, wait_until, tmp_path)
    coordinator.kill()
    await wait_until(lambda: coordinator.pid == 0, "the end of the coordinator")
    await coordinator.start()
    await wait_until(cells(coordinator, 1), "a report to the new coordinator")
    client.execute(str(tmp_path / "second"))  # waits in the kernel for the first cell
    (tmp_path / "first").touch()
    (tmp_path / "second").touch()
    await wait_until(cells(coordinator, 0), "no cell")
    await jp_fetch("api", "kernels", kernel_id, method="DELETE")
    await wait_until(lambda: kernel_id not in extension.cell_reporter.watched, "no listener to a kernel that has ended")


async def test_a_kernel_that_has_died_for_good_has_no_cell(
    kernel: Any, coordinator: Any, extension: Any, wait_until: Any, tmp_path: Path, jp_serverapp: Any
) -> None:
    kernel_id, _ = await run_first_cell(kernel, coordinator, extension, wait_until, tmp_path)
    manager = jp_serverapp.kernel_manager.get_kernel(kernel_id)
    manager._restarter.restart_limit = 0  # else the kernel has to die five times
    os.kill(manager.provisioner.pid, signal.SIGKILL)
    await wait_until(lambda: kernel_id not in jp_serverapp.kernel_manager, "the end of the kernel")
    await wait_until(cells(coordinator, 0), "no cell of a kernel that has ended")


async def test_python_kernels_report_their_own_cells(
    kernel: Any, coordinator: Any, extension: Any, wait_until: Any
) -> None:
    await coordinator.start()
    other, _ = await kernel("r")
    python, _ = await kernel("python")
    await wait_until(lambda: other in extension.cell_reporter.watched, "a listener")
    assert python not in extension.cell_reporter.watched
