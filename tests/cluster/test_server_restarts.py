"""Test of a killed Jupyter server, whose successor adopts its kernels on nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient

from jupyter_gpushare.cluster import kernel_folder, kernel_records

from ..support.polling import wait_until
from .conftest import WAIT, RemoteNotebook, free_port

START_SECONDS = 60.0


class JupyterServer:
    """Jupyter server in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._port = free_port()
        options = [f"--port={self._port}", "--IdentityProvider.token=t", f"--ServerApp.root_dir={folder}"]
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", *options]
        self.log = folder / "server.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_until(self._is_ready, START_SECONDS)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self._port}/api/{path}", data, method=method)
        request.add_header("Authorization", "token t")
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return json.loads(answer.read() or "null")

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with suppress(OSError):
            self.request("GET", "sessions")
            return True
        return False


@pytest.fixture
def start_server(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], JupyterServer]]:
    """Provide a function that starts a server with the kernelspec `remote`."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "work").mkdir()
    servers: list[JupyterServer] = []

    def start() -> JupyterServer:
        servers.append(JupyterServer(tmp_path / "work"))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.wait(WAIT)


def value(runtime: Path, kernel: str, expression: str) -> Any:
    """Return the value of an expression, by the connection file that the server has written."""
    file = runtime / f"kernel-{kernel}.json"
    wait_until(file.exists)
    client = BlockingKernelClient(connection_file=str(file))
    client.load_connection_file()
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
    (tmp_path / "work" / "sub").mkdir()
    first = start_server()
    kernel = first.request("POST", "sessions", session)["kernel"]["id"]
    assert value(tmp_path / "runtime", kernel, "globals().setdefault('x', 41)") == "41"
    first.process.kill()
    first.process.wait(WAIT)
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
    first.process.kill()
    first.process.wait(WAIT)
    (folder,) = kernel_folder.all_kernels()
    pids = list(folder.processes())
    for pid in pids:
        os.kill(pid, 9)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    second = start_server()
    wait_until(lambda: kernel_records.load(kernel) is None)
    assert second.request("GET", "kernels") == []
    assert "has ended without a Jupyter server" in second.log.read_text()
