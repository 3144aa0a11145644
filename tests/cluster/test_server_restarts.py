"""Test of a killed Jupyter server, whose successor adopts its kernels on nodes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_client.blocking import BlockingKernelClient

from jupyter_gpushare.cluster import kernel_records
from jupyter_gpushare.cluster.node import kernel_folder

from ..support.polling import wait_until
from .conftest import NODES, WAIT, JupyterServer, separate_nodes

NOTEBOOKS = 3
SESSION = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "remote"}}


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


def test_the_next_server_has_the_notebooks_with_their_kernels(
    start_server: Callable[[], JupyterServer], tmp_path: Path
) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    first = start_server()
    kernels = {}
    for number in range(NOTEBOOKS):
        path, name = f"sub/{number}.ipynb", f"{number}.ipynb"
        session = {"path": path, "name": name, "type": "notebook", "kernel": {"name": "remote"}}
        kernel = kernels[path] = first.request("POST", "sessions", session)["kernel"]["id"]
        assert value(tmp_path / "runtime", kernel, f"globals().setdefault('x', {number})") == str(number)
        shared = {"kernel": kernel, "client": kernel, "node": "localhost"}
        assert first.request("GET", f"gpushare/api/kernels/{kernel}") == shared
    first.kill()
    assert {record.kernel for record in kernel_records.without_server()} == set(kernels.values())

    second = start_server()
    found = wait_until(lambda: len(have := second.request("GET", "sessions")) == NOTEBOOKS and have, WAIT)
    assert {one["path"]: (one["kernel"]["id"], one["kernel"]["name"]) for one in found} == {
        path: (kernel, "remote") for path, kernel in kernels.items()
    }
    for number, kernel in enumerate(kernels.values()):
        assert value(tmp_path / "runtime", kernel, "x + 1") == str(number + 1)
    pids = [pid for folder in kernel_folder.all_kernels() for pid in folder.processes()]
    assert len(pids) == 2 * NOTEBOOKS
    second.process.terminate()
    second.process.wait(WAIT)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    assert kernel_folder.all_kernels() == []
    assert not any(kernel_records.load(kernel) for kernel in kernels.values())


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


def test_a_server_with_another_engine_leaves_the_kernels(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    first = start_server(**separate_nodes(tmp_path))
    kernel = first.request("POST", "sessions", SESSION)["kernel"]["id"]
    first.kill()
    record = kernel_records.load(kernel)
    assert record is not None
    other = start_server()
    wait_until(lambda: f"kernels {kernel} on {record.node}" in other.log.read_text(), WAIT)
    assert other.request("GET", "kernels") == []
    assert kernel_records.load(kernel) == record
    other.kill()
    second = start_server(**separate_nodes(tmp_path))
    # A request for all kernels may fail while one of them starts.
    found = wait_until(lambda: second.request("GET", "sessions"), WAIT)
    assert [one["kernel"]["id"] for one in found] == [kernel]
    second.process.terminate()
    second.process.wait(WAIT)
    assert kernel_records.load(kernel) is None


def test_a_server_of_another_folder_leaves_the_kernels(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    first = start_server()
    kernel = first.request("POST", "sessions", SESSION)["kernel"]["id"]
    assert value(tmp_path / "runtime", kernel, "globals().setdefault('x', 41)") == "41"
    first.kill()
    record = kernel_records.load(kernel)
    other = start_server(root="other")
    wait_until(lambda: f"kernels {kernel} on localhost" in other.log.read_text(), WAIT)
    assert other.request("GET", "kernels") == []
    other.process.terminate()
    other.process.wait(WAIT)
    assert kernel_records.load(kernel) == record
    second = start_server()
    found = wait_until(lambda: second.request("GET", "sessions"), WAIT)
    assert [(one["path"], one["kernel"]["id"]) for one in found] == [("a.ipynb", kernel)]
    assert value(tmp_path / "runtime", kernel, "x + 1") == "42"


def test_a_kernel_that_cannot_be_adopted_is_logged(start_server: Callable[[], JupyterServer], tmp_path: Path) -> None:
    first = start_server()
    kernel = first.request("POST", "kernels", {"name": "remote"})["id"]
    first.kill()
    shutil.rmtree(tmp_path / "jupyter" / "kernels" / "remote")
    second = start_server()
    wait_until(lambda: f"cannot adopt kernel {kernel} on localhost" in second.log.read_text(), WAIT)
    assert "No such kernel named remote" in second.log.read_text()


def test_the_end_of_a_server_ends_commands_that_wait_for_nodes(
    start_server: Callable[..., JupyterServer], tmp_path: Path
) -> None:
    nodes = {**separate_nodes(tmp_path), "engine": "sh -c 'exec sleep 600' {node} {agent}"}
    server = start_server(**nodes)
    with ThreadPoolExecutor() as threads:
        start = threads.submit(server.request, "POST", "kernels", {"name": "remote"})
        waiting = wait_until(lambda: len(found := server.children("sleep")) == len(NODES) and found, WAIT)
        server.process.terminate()
        server.process.wait(WAIT)
        assert start.exception()
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in waiting))
