"""Test of a killed Jupyter server, whose successor adopts its kernels on nodes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from jupyter_gpushare.cluster import kernel_records
from jupyter_gpushare.cluster.node import kernel_folder

from ..support.polling import wait_until
from .conftest import WAIT, JupyterServer


def value(runtime: Path, kernel: str, expression: str) -> Any:
    """Return the value of an expression, by the connection file that the server has written."""
    file = runtime / f"kernel-{kernel}.json"
    wait_until(file.exists)
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
    client.hb_channel.time_to_dead = WAIT  # else a client without a manager takes a pause of 1 s for the kernel's end
    client.start_channels()
    try:
        client.wait_for_ready(WAIT)
        answer = client.execute_interactive(
            "", user_expressions={"v": expression}, output_hook=lambda _: None, timeout=WAIT
        )
        return answer["content"]["user_expressions"]["v"]["data"]["text/plain"]
    finally:
        client.stop_channels()


def test_the_next_server_has_the_notebook_with_its_kernel(
    start_server: Callable[[], JupyterServer], tmp_path: Path
) -> None:
    session = {"path": "sub/n.ipynb", "name": "n.ipynb", "type": "notebook", "kernel": {"name": "remote"}}
    (tmp_path / "work" / "sub").mkdir(parents=True)
    first = start_server()
    kernel = first.request("POST", "sessions", session)["kernel"]["id"]
    assert value(tmp_path / "runtime", kernel, "globals().setdefault('x', 41)") == "41"
    shared = {"kernel": kernel, "client": kernel, "node": "localhost"}
    assert first.request("GET", f"gpushare/api/kernels/{kernel}") == shared
    first.kill()
    (record,) = kernel_records.without_server()
    assert record.kernel == kernel

    second = start_server()
    (found,) = wait_until(lambda: second.request("GET", "sessions"), WAIT)
    assert (found["path"], found["kernel"]["id"], found["kernel"]["name"]) == ("sub/n.ipynb", kernel, "remote")
    assert value(tmp_path / "runtime", kernel, "x + 1") == "42"
    (folder,) = kernel_folder.all_kernels()
    pids = list(folder.processes())
    second.process.terminate()
    second.process.wait(WAIT)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert kernel_folder.all_kernels() == [] and kernel_records.load(kernel) is None


def test_a_kernel_that_has_ended_without_a_server_is_forgotten(
    start_server: Callable[[], JupyterServer], tmp_path: Path
) -> None:
    first = start_server()
    kernel = first.request("POST", "kernels", {"name": "remote"})["id"]
    first.kill()
    (folder,) = kernel_folder.all_kernels()
    pids = list(folder.processes())
    for pid in pids:
        os.kill(pid, 9)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    second = start_server()
    wait_until(lambda: kernel_records.load(kernel) is None)
    assert second.request("GET", "kernels") == []
    assert "has ended without a Jupyter server" in second.log.read_text()


def test_a_kernel_that_cannot_be_adopted_is_logged(start_server: Callable[[], JupyterServer], tmp_path: Path) -> None:
    first = start_server()
    kernel = first.request("POST", "kernels", {"name": "remote"})["id"]
    first.kill()
    shutil.rmtree(tmp_path / "jupyter" / "kernels" / "remote")
    second = start_server()
    wait_until(lambda: f"cannot adopt kernel {kernel} on localhost" in second.log.read_text(), WAIT)
    assert "No such kernel named remote" in second.log.read_text()
