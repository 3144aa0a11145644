"""Cells of kernels in other languages, which the server reports for them."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
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
def kernel(jp_environ: Any, jp_kernel_dir: Path, jp_fetch: Any, jp_serverapp: Any, coordinator: Any) -> Iterator[Any]:
    """Start a shared kernel of that language, whose cells end when the file that they name exists."""

    clients: list[Any] = []

    async def start(language: str) -> tuple[str, Any]:
        (jp_kernel_dir / language).mkdir()
        spec = {
            "argv": [sys.executable, "-c", KERNEL, "-f", "{connection_file}"],
            "display_name": language,
            "language": language,
            "env": {"GPUSHARE_CLIENT": f"a kernel of {language}".replace(" ", "-"), "GPUSHARE_TOKEN": "secret"},
        }
        (jp_kernel_dir / language / "kernel.json").write_text(json.dumps(spec))
        answer = await jp_fetch("api", "kernels", method="POST", body=json.dumps({"name": language}))
        kernel_id = json.loads(answer.body)["id"]
        client = jp_serverapp.kernel_manager.get_kernel(kernel_id).client()
        clients.append(client)
        client.start_channels()
        await client.wait_for_ready()
        return kernel_id, client

    yield start
    for client in clients:
        client.stop_channels()


async def cells(coordinator: Any, client: str) -> int | None:
    status = await coordinator.request(messages.Status())
    return next((one["cells"] for one in status["clients"] if one["id"] == client), None)


async def test_a_cell_counts_from_busy_to_idle(
    kernel: Any, coordinator: Any, extension: Any, eventually: Any, tmp_path: Path, jp_fetch: Any
) -> None:
    await coordinator.start()
    kernel_id, client = await kernel("julia")
    await eventually(lambda: kernel_id in extension.cells.watched, "listened to")
    client.execute(str(tmp_path / "first"))
    assert await poll(lambda: cells(coordinator, "a-kernel-of-julia"), 1)
    coordinator.kill()
    await eventually(lambda: coordinator.pid == 0, "gone")
    await coordinator.start()
    assert await poll(lambda: cells(coordinator, "a-kernel-of-julia"), 1), "said again to a new coordinator"
    client.execute(str(tmp_path / "second"))  # it waits in the kernel behind the first
    (tmp_path / "first").touch()
    (tmp_path / "second").touch()
    assert await poll(lambda: cells(coordinator, "a-kernel-of-julia"), 0)
    await jp_fetch("api", "kernels", kernel_id, method="DELETE")
    await eventually(lambda: kernel_id not in extension.cells.watched, "nobody listens to what has ended")


async def test_python_reports_its_own(kernel: Any, coordinator: Any, extension: Any, eventually: Any) -> None:
    await coordinator.start()
    other, _ = await kernel("r")
    python, _ = await kernel("python")
    await eventually(lambda: other in extension.cells.watched, "listened to")
    assert python not in extension.cells.watched


async def poll(value: Any, wanted: Any, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while await value() != wanted:
        assert time.monotonic() < end, f"{await value()} instead of {wanted}"
        await asyncio.sleep(0.02)
    return True
