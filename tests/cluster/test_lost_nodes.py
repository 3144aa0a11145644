"""Tests of nodes that are lost under an open page, and of nodes that answer too late."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect
from traitlets.config import Config

from jupyter_gpushare.cluster import kernel_records
from jupyter_gpushare.cluster.channel.messages import NodeError, Running, SetMove, Signal, Wait
from jupyter_gpushare.cluster.node import kernel_folder
from jupyter_gpushare.cluster.node_connection import CONNECTIONS, NodeConnection
from jupyter_gpushare.cluster.remote_kernel import RemoteKernel

from ..support.polling import wait_until
from ..support.tier import nightly
from .conftest import NODES, WAIT, JupyterServer, Node, RemoteNotebook, start_request


class Page:
    """Page of a notebook, which connects to its kernel again whenever the server closes the connection."""

    def __init__(self, server: JupyterServer, kernel: str) -> None:
        self._url = f"ws://127.0.0.1:{server.port}/api/kernels/{kernel}/channels?session_id={uuid.uuid4().hex}"
        self._connection: WebSocketClientConnection | None = None
        self.connections = 0
        self.printed = ""  # by cells, with the messages of their errors

    async def value(self, expression: str, code: str = "") -> str:
        """Run a cell with `code`, and return the text of an expression's value in the kernel."""
        while True:
            if self._connection is None:
                await self._connect()
            header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "session": "s"}
            content = {"code": code, "user_expressions": {"v": expression}, "silent": False, "allow_stdin": False}
            message: dict[str, Any] = {"header": {**header, "version": "5.3"}, "content": content, "channel": "shell"}
            with contextlib.suppress(WebSocketClosedError):  # the server has closed the connection just now
                await self._connection.write_message(json.dumps({**message, "parent_header": {}, "metadata": {}}))
            while text := await self._connection.read_message():
                answer = json.loads(text)
                self.printed += answer["content"].get({"stream": "text", "error": "evalue"}.get(answer["msg_type"]), "")
                if answer["msg_type"] == "execute_reply" and answer["parent_header"]["msg_id"] == header["msg_id"]:
                    if answer["content"]["status"] == "aborted":  # soon after a cell that has failed
                        break
                    return str(answer["content"]["user_expressions"]["v"]["data"]["text/plain"])
            else:
                await self.close()

    async def _connect(self) -> None:
        connecting = websocket_connect(HTTPRequest(self._url, headers={"Authorization": "token t"}))
        try:
            self._connection = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(lambda done: done.exception() or done.result().close())
            raise
        self.connections += 1

    async def close(self) -> None:
        """Close the connection, also one that the server has closed, and wait until its socket is closed."""
        if self._connection is None:
            return
        stream = self._connection.protocol.stream if self._connection.protocol else None
        self._connection.close()
        self._connection = None
        while stream is not None and not stream.closed():
            await asyncio.sleep(0.01)

    async def value_becomes(self, expression: str, expected: str) -> None:
        """Wait for a value. The kernel on a lost node of this test may answer until its connections are closed."""
        while await self.value(expression) != expected:
            pass


def node_of(kernel: str) -> str:
    """Return the node of a kernel, or "" while it starts anew."""
    record = kernel_records.load(kernel)
    return record.node if record else ""


def last_activity(server: JupyterServer, kernel: str) -> str:
    """Return the time by which a server culls idle kernels."""
    return str(server.request("GET", f"kernels/{kernel}")["last_activity"])


@pytest.mark.parametrize(
    ("node_timeout", "ports"),
    # five ports, which both nodes use
    [("0", ""), ("1", "9605-9609"), *nightly([("1", ""), ("0", "9600-9604")])],
)
def test_an_open_page_goes_on_with_a_kernel_on_another_node(
    start_server: Callable[..., JupyterServer], tmp_path: Path, node_timeout: str, ports: str
) -> None:
    """With the timeout the kernel starts anew by itself, and without by the button."""
    folder = f"{tmp_path}/{{node}}"
    variables = f"XDG_STATE_HOME={folder} GPUSHARE_SOCKET={folder}/c.sock"
    lost = f"test ! -e {folder}.lost || {{ echo no route to the host >&2; exit 1; }}"
    engine = f"sh -c '{lost}; mkdir -pm 700 {folder}; exec env {variables} \"$@\"' sh {{agent}}"
    addresses = dict(zip(NODES, ("127.0.0.1", "127.0.0.2"), strict=True))
    server = start_server(engine=engine, nodes=list(NODES), addresses=addresses, node_timeout=node_timeout, ports=ports)
    kernel = server.request("POST", "kernels", {"name": "remote"})["id"]
    record = kernel_records.load(kernel)
    assert record is not None
    other = NODES[1 - NODES.index(record.node)]

    async def lose_the_node() -> None:
        page = Page(server, kernel)
        node = "__import__('os').environ['XDG_STATE_HOME'][-2:]"
        assert await page.value(f"[globals().setdefault('x', 41), {node}]") == f"[41, '{record.node}']"
        (tmp_path / f"{record.node}.lost").touch()
        for pid in server.children("jupyter_gpushare"):
            os.kill(pid, signal.SIGKILL)
        if node_timeout == "0":
            await asyncio.to_thread(server.request, "POST", f"kernels/{kernel}/restart")
        await asyncio.to_thread(wait_until, lambda: node_of(kernel) == other, WAIT)
        await asyncio.wait_for(page.value_becomes(f"['x' in globals(), {node}]", f"[False, '{other}']"), WAIT)
        assert page.connections == 2
        moment = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
        deadline = time.monotonic() + WAIT
        await asyncio.wait_for(page.value("1", code="pass"), WAIT)
        while await asyncio.to_thread(last_activity, server, kernel) <= moment and time.monotonic() < deadline:
            await asyncio.wait_for(page.value("1", code="pass"), WAIT)  # the server may have missed the first cell
        assert last_activity(server, kernel) > moment
        while "anew" not in page.printed and time.monotonic() < deadline:
            await asyncio.wait_for(page.value("1"), WAIT)  # the output of a cell may come after its reply
        reason = f"{record.node}: the node agent on {record.node} has ended: no route to the host"
        shown = f"gpushare: this kernel has started anew on {other}, without its variables: {reason}\n"
        assert page.printed.count(shown) == page.printed.count("anew") == 1
        await page.close()

    asyncio.run(lose_the_node())
    with contextlib.suppress(ProcessLookupError):  # the button also sends a request to the kernel, which may answer
        os.killpg(record.pid, signal.SIGKILL)


def slow_node(folder: Path, **settings: Any) -> Config:
    """Return settings of the node n1, whose agent starts when `end_late_kernel` lets it."""
    node = f"{folder}/{{node}}"
    script = f"mkdir -pm 700 {node}; while test ! -e {node}/go; do sleep 0.05; done; exec env XDG_STATE_HOME={node}"
    engine = f"sh -c '{script} \"$@\"' sh {{agent}}"
    return Config(
        {"GpuShareCluster": {"engine": engine, "nodes": ["n1"], "addresses": {"n1": "127.0.0.1"}, **settings}}
    )


def end_late_kernel(folder: Path) -> None:
    """Let the agent start, and wait until the kernel `late` has started and has ended."""
    (connection,) = wait_until(CONNECTIONS.present, WAIT)
    wait_until(lambda: connection._pending, WAIT)  # the start
    wait_until((folder / "n1").exists, WAIT)
    (folder / "n1" / "go").touch()
    after_start = SetMove(kernel="late", move="0" * 16, state="withdrawn")  # without an effect
    assert connection.request(after_start).result(WAIT) == []
    (kernels,) = (folder / "n1").glob("gpushare/*/kernels")
    wait_until(lambda: not list(kernels.iterdir()), WAIT)
    assert connection.request(Running()).result(WAIT) == []


def test_a_kernel_that_starts_too_late_ends(start_notebook: Callable[..., RemoteNotebook], tmp_path: Path) -> None:
    with pytest.raises(NodeError, match=r"the node n1 has not answered within 0\.5 s"):
        start_notebook(kernel_id="late", **slow_node(tmp_path, start_timeout="0.5")["GpuShareCluster"])
    end_late_kernel(tmp_path)


async def test_a_kernel_whose_start_is_cancelled_ends(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path
) -> None:
    manager = AsyncKernelManager(kernel_name="remote", config=slow_node(tmp_path))
    start = asyncio.ensure_future(manager.start_kernel(kernel_id="late"))
    await asyncio.to_thread(wait_until, (tmp_path / "n1").exists, WAIT)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    await asyncio.to_thread(end_late_kernel, tmp_path)


async def test_a_kernel_whose_start_is_cancelled_twice_ends(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends its request only after both cancellations."""
    connect, begun, goes_on = CONNECTIONS.connection, threading.Event(), threading.Event()

    def connect_late(*arguments: Any) -> NodeConnection:
        begun.set()
        assert goes_on.wait(WAIT)
        return connect(*arguments)

    monkeypatch.setattr(CONNECTIONS, "connection", connect_late)
    manager = AsyncKernelManager(kernel_name="remote", config=slow_node(tmp_path))
    start = asyncio.ensure_future(manager.start_kernel(kernel_id="late"))
    assert await asyncio.to_thread(begun.wait, WAIT)
    start.cancel()
    await asyncio.sleep(0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    goes_on.set()
    await asyncio.to_thread(end_late_kernel, tmp_path)


def test_a_kernel_whose_start_has_failed_ends_when_its_lost_node_is_back(node: Node) -> None:
    node.request(start_request())
    losses = [NodeError("no route to the host", "engine_failed")] * 3

    def connect() -> NodeConnection:
        if losses:
            raise losses.pop()
        return node.connection

    RemoteKernel("k1", connect).discard()
    wait_until(lambda: kernel_folder.all_kernels() == [])


def test_a_kernel_whose_start_has_failed_takes_no_later_kernel_along(node: Node) -> None:
    """The lost node has not got the first start, and is back when the kernel starts again."""
    lost, tries = threading.Event(), threading.Semaphore(0)
    lost.set()

    def connect() -> NodeConnection:
        tries.release()
        if lost.is_set():
            raise NodeError("no route to the host", "engine_failed")
        return node.connection

    first = RemoteKernel("k1", connect, start="first")
    first.discard()
    for _ in range(4):  # a Wait and a Signal in each try to reach the node
        assert tries.acquire(timeout=WAIT)
    pid = node.request(start_request(start="second"))["pid"]
    lost.clear()
    assert first.ended.result(WAIT).status is None
    assert [kernel["pid"] for kernel in node.request(Running())] == [pid]
    node.request(Signal(kernel="k1", number=signal.SIGKILL, start="second"))
    assert node.request(Wait(kernel="k1", start="second"))["status"] == -signal.SIGKILL
