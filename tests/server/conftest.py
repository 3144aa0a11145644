"""Fixtures with a Jupyter server, the extension and its coordinator, in a folder of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from jupyter_core.utils import ensure_async
from tornado.httpclient import HTTPClientError
from traitlets.config import Config

from jupyter_gpushare.server import supervisor
from jupyter_gpushare.server.app import GpuShareApp
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import AsyncClient, default_coordinator_argv, ensure_coordinator_async


class Refusal(NamedTuple):
    status: int
    reason: str
    message: str


class Coordinator:
    """Coordinator at the socket that this test has set for the server."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    def pid(self) -> int:
        """Process id of the coordinator, or 0 without one."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.path)
            return int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        return 0

    def kill(self) -> int:
        """Kill the coordinator, and return the process id that it had."""
        pid = self.pid
        assert pid not in (0, os.getpid())
        os.kill(pid, signal.SIGKILL)
        return pid

    async def request(self, message: Any) -> Any:
        """Send a request to the coordinator, as another client on this host."""
        client = await AsyncClient.connect(self.path)
        try:
            return await client.request(message)
        finally:
            await client.close()

    async def start(self, *clients: str) -> None:
        """Start the coordinator as a kernel does, and register clients."""
        argv = default_coordinator_argv(simulate=True)
        await ensure_coordinator_async(
            self.path, argv, wait=30.0
        )  # users have 5 s, which end a start on a busy machine
        for client in clients:
            await self.request(messages.Register(client=client, token="secret", label=f"label of {client}"))


@pytest.fixture
def coordinator(own_host: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Coordinator]:
    """Set a socket without a coordinator, and kill the coordinator that runs there after the test.

    The fixture `own_host` kills a coordinator that starts later.
    """
    folder = Path(tempfile.mkdtemp(prefix="s-", dir=own_host))
    served = Coordinator(str(folder / "c.sock"))
    monkeypatch.setenv("GPUSHARE_SOCKET", served.path)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))  # without the state of other tests
    monkeypatch.setattr(supervisor, "START_TIMEOUT_SECONDS", 30.0)  # a busy machine starts a coordinator slowly
    yield served
    pid = served.pid
    if pid not in (0, os.getpid()):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def gpushare_settings() -> dict[str, Any]:
    """Return `c.GpuShare`, which tests override."""
    return {"simulate": True}


@pytest.fixture
def jp_server_config(coordinator: Coordinator, gpushare_settings: dict[str, Any]) -> Config:
    return Config(
        {
            "ServerApp": {
                "jpserver_extensions": {"jupyter_gpushare": True, "jupyter_server_terminals": False},
                "allow_unauthenticated_access": False,
                "reraise_server_extension_failures": True,
            },
            "GpuShare": gpushare_settings,
        }
    )


@pytest.fixture
def extension(jp_serverapp: Any) -> GpuShareApp:
    app = jp_serverapp.extension_manager.extension_points["jupyter_gpushare"].app
    assert isinstance(app, GpuShareApp)
    return app


@pytest.fixture
def api(jp_fetch: Any) -> Callable[..., Awaitable[Any]]:
    """Return a function that sends a request and returns the JSON answer, as in `await call("GET", "status")`."""

    async def call(method: str, *parts: str, body: Any = None, **options: Any) -> Any:
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        answer = await jp_fetch(
            "gpushare", "api", *parts, method=method, body=text, allow_nonstandard_methods=True, **options
        )
        assert answer.headers["Content-Type"] == "application/json"
        return json.loads(answer.body)

    return call


@pytest.fixture
def refused(api: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Refusal]]:
    """Return a function such as `api` for requests that must be refused, with JSON."""

    async def call(method: str, *parts: str, body: Any = None, **options: Any) -> Refusal:
        with pytest.raises(HTTPClientError) as caught:
            await api(method, *parts, body=body, **options)
        answer = caught.value.response
        assert answer is not None and answer.headers["Content-Type"] == "application/json"
        error = json.loads(answer.body)
        assert error["message"]
        return Refusal(caught.value.code, error["reason"], error["message"])

    return call


@pytest.fixture
def events(jp_ws_fetch: Any) -> Iterator[Callable[[], Awaitable[Callable[[], Awaitable[Any]]]]]:
    """Return a function that opens a WebSocket and returns a function for its next frame, or None at its end."""
    sockets = []

    async def connect() -> Callable[[], Awaitable[Any]]:
        connection = await jp_ws_fetch("gpushare", "api", "events")
        sockets.append(connection)

        async def receive(timeout: float = 60.0) -> Any:
            text = await asyncio.wait_for(connection.read_message(), timeout)
            return None if text is None else json.loads(text)

        return receive

    yield connect
    for connection in sockets:
        connection.close()


ECHO = [sys.executable, "-m", "pytest_jupyter.echo_kernel", "-f", "{connection_file}"]


@pytest.fixture
def kernelspec(jp_environ: Any, jp_kernel_dir: Path) -> Callable[..., str]:
    """Return a function that adds a kernelspec, by default of the echo kernel, and returns its name."""

    def add(name: str, **fields: Any) -> str:
        (jp_kernel_dir / name).mkdir()
        text = json.dumps({"argv": ECHO, "display_name": name, "language": "echo", **fields})
        (jp_kernel_dir / name / "kernel.json").write_text(text)
        return name

    return add


@pytest.fixture
def create(jp_fetch: Any) -> Callable[..., Awaitable[str]]:
    """Return a function that creates an object by Jupyter's own REST interface and returns its id.

    An example is `await create("kernels", name="python3")`.
    """

    async def post(kind: str, **body: Any) -> str:
        answer = await jp_fetch("api", kind, method="POST", body=json.dumps(body))
        return str(json.loads(answer.body)["id"])

    return post


@pytest.fixture
def channels(jp_serverapp: Any) -> Iterator[Callable[[str], Awaitable[Any]]]:
    """Return a function that connects to a kernel of the server and returns the client of its channels."""
    clients: list[Any] = []

    async def connect(kernel_id: str) -> Any:
        client = jp_serverapp.kernel_manager.get_kernel(kernel_id).client()
        clients.append(client)
        client.start_channels()
        await client.wait_for_ready(60)
        return client

    yield connect
    for client in clients:
        client.stop_channels()


async def wait_until(condition: Callable[[], Any], what: str, timeout: float = 60.0) -> Any:
    """Poll until `condition()`, which may be awaitable, is true, and return its value."""
    deadline = time.monotonic() + timeout
    while not (value := await ensure_async(condition())):
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        await asyncio.sleep(0.02)
    return value


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., Awaitable[Any]]:
    return wait_until
