"""Tests of the nodes' devices and clients in the snapshot, the actions and the metrics of a Jupyter server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_gpushare.wire.client import Client, Unreachable
from jupyter_gpushare.wire.messages import Stop

from ..support.polling import wait_until
from .conftest import NODES, WAIT, JupyterServer, separate_nodes


@pytest.fixture
def kernels(server: JupyterServer) -> dict[str, str]:
    return start_kernels(server)


def start_kernels(server: JupyterServer) -> dict[str, str]:
    """Start a kernel on each node that has none, and return the kernels by node. A kernel avoids the other's node."""
    kernels = {node_of(server, kernel["id"]): kernel["id"] for kernel in server.request("GET", "kernels")}
    for _ in range(len(NODES) - len(kernels)):
        kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
        kernels[node_of(server, kernel)] = kernel
    assert kernels.keys() == set(NODES)
    return kernels


def node_of(server: JupyterServer, kernel: str) -> str:
    return str(server.request("GET", f"gpushare/api/kernels/{kernel}")["node"])


def metrics_of(server: JupyterServer) -> list[str]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics")
    request.add_header("Authorization", "token t")
    with urllib.request.urlopen(request, timeout=WAIT) as answer:
        return list(answer.read().decode().splitlines())


async def snapshots_until(server: JupyterServer, is_expected: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Return the first snapshot of the WebSocket, as a page receives it, that is as expected."""
    url = f"ws://127.0.0.1:{server.port}/gpushare/api/events"
    socket = await websocket_connect(HTTPRequest(url, headers={"Authorization": "token t"}))
    frames: list[str | bytes] = []

    async def expected() -> dict[str, Any]:
        while text := await socket.read_message():
            frames.append(text)
            frame = json.loads(text)
            if frame["type"] == "snapshot" and is_expected(frame["status"]):
                return dict(frame["status"])
        raise AssertionError("the server has closed the WebSocket")

    try:
        return await asyncio.wait_for(expected(), 2 * WAIT)
    except asyncio.TimeoutError:
        raise AssertionError(f"no snapshot is as expected; the last ones: {frames[-2:]}") from None
    finally:
        socket.close()


async def test_a_page_gets_the_devices_and_clients_of_both_nodes(
    server: JupyterServer, kernels: dict[str, str]
) -> None:
    status = await snapshots_until(server, lambda status: len(status["clients"]) == 2)
    assert {one["node"]: one["id"] for one in status["clients"]} == kernels
    assert {device["node"] for device in status["devices"]} == set(NODES)
    assert status["nodes"] == [{"name": node, "message": ""} for node in NODES]
    assert status["config"] is None, "this host has no coordinator, and a page starts none"


async def test_a_new_page_gets_new_times(start_server: Callable[..., JupyterServer], tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_server_config.py").write_text(
        "from jupyter_gpushare.server import node_snapshots\nnode_snapshots._REFRESH_SECONDS = 30.0\n"
    )
    server = start_server(**separate_nodes(tmp_path))
    kernels = start_kernels(server)

    async def idle_seconds() -> float:
        status = await snapshots_until(server, lambda status: len(status["clients"]) == 2)
        return float(next(one["idle_seconds"] for one in status["clients"] if one["id"] == kernels["n1"]))

    first, began = await idle_seconds(), time.monotonic()
    while time.monotonic() < began + 2.5:  # without a page, the server gets the next snapshots much later
        await asyncio.sleep(0.1)
    assert await idle_seconds() >= first + 2.0


async def test_an_action_reaches_the_client_on_its_node(server: JupyterServer, kernels: dict[str, str]) -> None:
    await snapshots_until(server, lambda status: len(status["clients"]) == 2)
    client = kernels["n2"]
    server.request("POST", f"gpushare/api/clients/{client}/suspend")
    server.request("PATCH", f"gpushare/api/clients/{client}/quota", {"share": 0.25})

    def is_changed(status: dict[str, Any]) -> bool:
        (one,) = (one for one in status["clients"] if one["id"] == client)
        return bool(one["suspended"]) and one["quota"]["share"] == 0.25

    status = await snapshots_until(server, is_changed)
    assert [one["id"] for one in status["clients"] if one["suspended"]] == [client]
    server.request("POST", f"gpushare/api/clients/{client}/resume")
    await snapshots_until(server, lambda status: not any(one["suspended"] for one in status["clients"]))


@pytest.mark.usefixtures("kernels")
async def test_a_node_without_an_answer_has_a_message_until_it_is_back(server: JupyterServer) -> None:
    """The server replaces the stopped node agents after 15 s."""
    await snapshots_until(server, lambda status: len(status["clients"]) == 2)
    for agent in server.children("agent"):
        os.kill(agent, signal.SIGSTOP)
    status = await snapshots_until(server, lambda status: all(one["message"] for one in status["nodes"]))
    assert all(one["name"] in one["message"] for one in status["nodes"])
    status = await snapshots_until(server, lambda status: len(status["clients"]) == 2)
    assert status["nodes"] == [{"name": node, "message": ""} for node in NODES]


async def test_a_node_is_shown_until_its_last_kernel_ends(server: JupyterServer, kernels: dict[str, str]) -> None:
    server.request("DELETE", f"kernels/{kernels['n1']}")
    status = await snapshots_until(server, lambda status: [one["name"] for one in status["nodes"]] == ["n2"])
    assert [one["node"] for one in status["clients"]] == ["n2"]


def test_the_query_names_a_node(server: JupyterServer, kernels: dict[str, str]) -> None:
    status = server.request("GET", "gpushare/api/status?node=n1")
    assert [one["id"] for one in status["clients"]] == [kernels["n1"]]
    assert server.request("GET", "gpushare/api/config?node=n2")["policy"] == "interactive"
    assert server.request("GET", "gpushare/api/usage?node=n2")["complete"]
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.request("GET", "gpushare/api/status?node=nosuch")
    assert refused.value.code == 404
    assert json.loads(refused.value.read())["message"] == "This server has no kernel on a node 'nosuch'."


@pytest.mark.usefixtures("kernels")
def test_metrics_have_the_node(server: JupyterServer) -> None:
    expected = [f'gpushare_clients{{node="{node}",phase="idle"}} 1.0' for node in NODES]
    wait_until(lambda: set(expected) <= set(metrics_of(server)), WAIT)
    assert "gpushare_coordinator_followed 0.0" in metrics_of(server)


def test_metrics_show_which_nodes_answer(start_server: Callable[..., JupyterServer], tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.mkdir()
    (config / "jupyter_server_config.py").write_text(
        "from jupyter_gpushare.server import node_snapshots\nnode_snapshots._UNWATCHED_INTERVALS = 1\n"
    )
    server = start_server(**separate_nodes(tmp_path))
    start_kernels(server)

    def wait_for(*values: float) -> None:
        expected = {f'gpushare_node_up{{node="{node}"}} {value}' for node, value in zip(NODES, values, strict=True)}
        wait_until(lambda: expected <= set(metrics_of(server)), WAIT)

    wait_for(1.0, 1.0)
    (tmp_path / "n1.lost").touch()
    for agent in server.children("agent"):
        os.kill(agent, signal.SIGKILL)
    wait_for(0.0, 1.0)
    (tmp_path / "n1.lost").unlink()
    wait_for(1.0, 1.0)


@pytest.fixture
def own_runtime_directory() -> Iterator[Path]:
    """Provide a runtime directory with a short path, as sockets need, and end its coordinator afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    yield folder
    with contextlib.suppress(Unreachable), Client(str(folder / "gpushare" / "coordinator.sock"), WAIT) as coordinator:
        coordinator.request(Stop())
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_node_that_is_the_host_itself_is_shown_once(
    own_runtime_directory: Path, start_server: Callable[..., JupyterServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine `local` runs the node agent on the host of the server, which has no coordinator in other tests."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(own_runtime_directory))
    server = start_server(nodes=["here"])
    kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
    status = await snapshots_until(
        server, lambda status: bool(status["clients"]) and status.get("coordinator") is not None
    )
    assert [(one["id"], one["node"]) for one in status["clients"]] == [(kernel, "")]
    assert {device["node"] for device in status["devices"]} == {""}
    assert [line for line in metrics_of(server) if line.startswith("gpushare_clients{") and 'idle"} 1.0' in line] == [
        'gpushare_clients{phase="idle"} 1.0'
    ]
