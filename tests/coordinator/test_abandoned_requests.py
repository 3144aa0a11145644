"""Tests of requests that their sender abandoned while the coordinator was stopped.

Such a request is not executed, a half-closed connection is answered, and a kernel reports the outcome.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.kernel.connection import request as kernel_request
from jupyter_gpushare.kernel.errors import Unreachable as KernelUnreachable
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import AsyncClient, Client, Unreachable

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import RawConnection

TIMEOUT_SECONDS = 0.3  # for a reply
CHANGES = [
    messages.Suspend(client="a"),
    messages.SetQuota(client="a", changes={"share": 0.9}),
    messages.Hold(client="a", seconds="5min"),
]


def from_a_kernel(path: str, message: Any) -> None:
    with pytest.raises(KernelUnreachable, match=r"did not answer within 0.3 s; the request was withdrawn"):
        kernel_request(path, json.loads(msgspec.json.encode(message)), TIMEOUT_SECONDS)


def from_a_command(path: str, message: Any) -> None:
    client = Client(path, TIMEOUT_SECONDS)  # stays open, as in a command that gives up
    with pytest.raises(Unreachable, match=r"did not answer within 0.3 s"):
        client.request(message)


def from_a_server(path: str, message: Any) -> None:
    async def ask() -> None:
        client = await AsyncClient.connect(path)
        try:
            with pytest.raises(Unreachable, match=r"did not answer within 0.3 s"):
                await client.request(message, TIMEOUT_SECONDS)
        finally:
            await client.close()

    asyncio.run(ask())


def client_fields(coordinator: CoordinatorProcess) -> dict[str, Any]:
    """Return the client of the snapshot without its idle time and the memory of the host, which other programs use."""
    changing = ("idle_seconds", "memory_backing", "max_evicted")
    return {key: value for key, value in (coordinator.client("a") or {}).items() if key not in changing}


@pytest.mark.parametrize("ask", [from_a_kernel, from_a_command, from_a_server])
def test_abandoned_request_is_not_executed(
    coordinator: CoordinatorProcess, processes: ProcessFactory, ask: Callable[[str, Any], None]
) -> None:
    coordinator.request(messages.Register(client="a", token="secret"))
    processes("a")
    before = client_fields(coordinator)
    with coordinator.stopped():
        for message in CHANGES:
            ask(coordinator.path, message)
    # This request comes after the abandoned ones, so the coordinator has handled them.
    assert client_fields(coordinator) == before


def test_abandoned_hello_counts_as_no_process(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """A process that connects again while the coordinator is stopped is one process afterwards."""
    coordinator.request(messages.Register(client="a", token="secret"))
    coordinator.request(messages.Config(changes={"max_processes": 1}))
    process = processes("a", connect=False)
    connections = [RawConnection(coordinator.path) for _ in range(3)]
    with coordinator.stopped():
        for connection in connections:
            connection.send(process.hello(), process.descriptors_of_hello())
        for connection in connections[:-1]:
            connection.close()
    answer = connections[-1].receive()
    assert answer and answer["type"] in ("welcome", "join")
    connections[-1].close()


def test_half_closed_connection_is_answered(coordinator: CoordinatorProcess) -> None:
    coordinator.request(messages.Register(client="a", token="secret"))
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        with coordinator.stopped():
            connection.connect(coordinator.path)
            connection.sendall(msgspec.json.encode(messages.Suspend(client="a", id=1)) + b"\n")
            connection.shutdown(socket.SHUT_WR)
        answer = json.loads(connection.makefile("rb").readline())
    assert answer == {"type": "reply", "id": 1, "result": {"suspended": True, "changed": True}}


def test_kernel_reports_the_outcome_of_its_request(tmp_path: Path) -> None:
    path = str(tmp_path / "c.sock")
    suspend = {"type": "suspend", "client": "a"}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        with pytest.raises(KernelUnreachable, match="refused; nothing was changed"):
            kernel_request(path, suspend, TIMEOUT_SECONDS)
        listener.listen()

        def read(answer: bytes) -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.send(answer)
                answer_read.wait(60)

        for answer in (b"", b"what?\n"):
            answer_read = threading.Event()
            reader = threading.Thread(target=read, args=(answer,))
            reader.start()
            with pytest.raises(KernelUnreachable, match="the request may have had an effect"):
                kernel_request(path, suspend, 2.0)
            answer_read.set()
            reader.join()
