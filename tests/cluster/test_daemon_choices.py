"""Tests of starts whose nodes the cluster daemon chooses, also while the daemon is killed, stopped or away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.asynchronous import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster.channel.messages import NodeError
from jupyter_gpushare.cluster.daemon import node_tries
from jupyter_gpushare.cluster.daemon.messages import ChooseNode
from jupyter_gpushare.cluster.daemon.node_tries import NodeTries
from jupyter_gpushare.cluster.start_queue import START_QUEUE

from ..support import tier
from ..support.polling import wait_until
from .conftest import ENDLESS_CELL, NODES, WAIT, Daemon

KILLS = 3  # of one test
TESTS_OF_KILLS = tier.strength(1, 17)


class Starts:
    """Kernels that one process starts with the settings of a daemon."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._managers: dict[str, AsyncKernelManager] = {}

    async def start(self, name: str, share: float = 0.0) -> str:
        """Start a kernel, and return its node."""
        config = Config({"GpuShareCluster": self._settings, "RemoteProvisioner": {"share": share}})
        manager = self._managers[name] = AsyncKernelManager(kernel_name="remote", config=config)
        await asyncio.wait_for(manager.start_kernel(kernel_id=name), WAIT)
        return str(manager.provisioner.node_name)  # type: ignore[union-attr]

    @contextlib.asynccontextmanager
    async def client(self, name: str) -> AsyncIterator[AsyncKernelClient]:
        """Yield a client of a kernel that is ready."""
        client = self._managers[name].client()
        client.start_channels()
        try:
            await client.wait_for_ready(WAIT)
            yield client
        finally:
            client.stop_channels()

    async def interrupt(self, name: str) -> None:
        await self._managers[name].interrupt_kernel()

    async def end(self, name: str) -> None:
        await self._managers.pop(name).shutdown_kernel(now=True)

    async def __aenter__(self) -> Starts:
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in [one for one, manager in self._managers.items() if manager.has_kernel]:
            await self.end(name)


async def reply_to(client: AsyncKernelClient, request: str) -> dict[str, Any]:
    """Return the kernel's reply to this request."""
    while (answer := await client.get_shell_msg(timeout=WAIT))["parent_header"]["msg_id"] != request:
        pass
    content: dict[str, Any] = answer["content"]
    return content


def clients(daemon: Daemon) -> list[int]:
    nodes = daemon.nodes()
    return [nodes[node]["clients"] for node in NODES]


async def test_the_daemon_chooses_the_node(start_daemon: Callable[..., Daemon]) -> None:
    """The server's own order prefers the node without clients, and the strategy `pack` the other one."""
    daemon = start_daemon(placement="pack")
    async with Starts(daemon.settings) as starts:
        first, second = await starts.start("a", 0.25), await starts.start("b", 0.25)
        assert {first, second} == set(NODES)
        await asyncio.to_thread(wait_until, lambda: clients(daemon) == [1, 1], WAIT)
        await starts.end("b")
        await asyncio.to_thread(wait_until, lambda: sum(clients(daemon)) == 1, WAIT)
        assert await starts.start("c", 0.25) == first


async def test_starts_at_the_same_time_go_to_four_nodes(start_daemon: Callable[..., Daemon]) -> None:
    nodes = [f"n{number}" for number in range(1, 5)]
    daemon = start_daemon(nodes=nodes, addresses=dict.fromkeys(nodes, "127.0.0.1"))
    async with Starts(daemon.settings) as starts:
        chosen = await asyncio.gather(*(starts.start(name, 1.0) for name in "abcd"))
        assert sorted(chosen) == nodes
        await asyncio.to_thread(wait_until, lambda: {node["clients"] for node in daemon.nodes().values()} == {1}, WAIT)
        assert not any(node["bookings"] for node in daemon.nodes().values())
        await starts.end("c")
        assert await starts.start("e", 1.0) == chosen[2]


async def test_a_start_without_room_waits_and_goes_on(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    async with Starts(daemon.settings) as starts:
        first = await starts.start("a", 1.0)
        await starts.start("b", 1.0)
        await asyncio.to_thread(wait_until, lambda: clients(daemon) == [1, 1], WAIT)
        waiting = asyncio.ensure_future(starts.start("c", 1.0))
        while not START_QUEUE.records() or not START_QUEUE.records()[0].message:
            await asyncio.sleep(0.05)
        assert "of its share left" in START_QUEUE.records()[0].message
        await starts.end("a")
        assert await waiting == first


async def test_a_node_that_refuses_is_followed_by_another_one(
    start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    """No coordinator runs at first, so that the daemon chooses the first node, which does not have its address."""
    daemon = start_daemon()
    async with Starts({**daemon.settings, "addresses": {"n1": "192.0.2.1", "n2": "127.0.0.1"}}) as starts:
        assert await starts.start("a") == "n2"
        assert "cannot start kernel a on n1" in caplog.text
        assert await starts.start("b") == "n2"
        assert "cannot start kernel b" not in caplog.text, "the daemon puts the node behind the other one"


async def test_a_node_that_the_daemon_does_not_know_is_tried_before_a_wait(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon(nodes=["n1"])
    async with Starts({**daemon.settings, "nodes": list(NODES), "room_timeout": "0"}) as starts:
        assert await starts.start("a", 1.0) == "n1"
        await asyncio.to_thread(wait_until, lambda: daemon.nodes()["n1"]["clients"] == 1, WAIT)
        assert await starts.start("b", 1.0) == "n2"


async def test_a_start_that_fails_leaves_no_booking(start_daemon: Callable[..., Daemon]) -> None:
    daemon = start_daemon()
    async with Starts({**daemon.settings, "addresses": dict.fromkeys(NODES, "192.0.2.1")}) as starts:
        with pytest.raises(NodeError, match="the node does not have the address"):
            await starts.start("a", 1.0)
    assert all(not node["bookings"] for node in daemon.nodes().values())


async def test_ceilings_hold_over_all_nodes(start_daemon: Callable[..., Daemon]) -> None:
    """The nodes themselves have room, and know no tenants."""
    tenants = {"team": {"users": ["*"], "max_clients": 1, "share": 0.5}}
    daemon = start_daemon(tenants=tenants)
    async with Starts({**daemon.settings, "room_timeout": "0"}) as starts:
        with pytest.raises(NodeError, match=r"share=0\.75 of 1 device is above what tenant 'team' has left") as failure:
            await starts.start("a", 0.75)
        assert failure.value.reason == "no_node", "no wait helps"
        await starts.start("b", 0.25)
        with pytest.raises(NodeError, match="tenant 'team' has 1 clients: allowed are 1") as failure:
            await starts.start("c", 0.25)
        assert failure.value.reason == "no_room"


@pytest.mark.parametrize("result", ["{}", "null", "[]", '{"node":7}', '{"node":"n1","devices":0}', '{"node":"other"}'])
async def test_an_unexpected_answer_is_no_answer(tmp_path: Path, result: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = json.loads(await reader.readline())["id"]
        writer.write(f'{{"type":"reply","id":{number},"result":{result}}}\n'.encode())
        writer.close()

    async def own_order() -> list[str]:
        return ["n2", "n1"]

    server = await asyncio.start_unix_server(answer, tmp_path / "stand-in.sock")
    tries = NodeTries(str(tmp_path / "stand-in.sock"), ChooseNode(client="k", nodes=NODES), "", own_order)
    tried: list[str] = []

    async def attempt(node: str, must_share: bool, fault: str) -> None:
        tried.append(node)
        raise NodeError("refused", "no_node")

    with pytest.raises(NodeError):
        await tries.start(attempt)
    assert tried == ["n2", "n1"]
    server.close()


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        (("engine_failed", "engine_failed"), "engine_failed"),
        (("engine_failed", "timeout"), "timeout"),
        (("agent_ended", "engine_failed"), "timeout"),
        (("engine_failed", "bad_address"), "no_node"),
    ],
)
async def test_the_reason_of_a_failed_start_is_that_of_all_nodes(failures: tuple[str, str], reason: str) -> None:
    async def own_order() -> tuple[str, ...]:
        return NODES

    async def attempt(node: str, must_share: bool, fault: str) -> None:
        raise NodeError("refused", dict(zip(NODES, failures, strict=True))[node])

    with pytest.raises(NodeError) as failure:
        await NodeTries("", ChooseNode(client="k", nodes=NODES), "", own_order).start(attempt)
    assert failure.value.reason == reason


async def test_a_start_goes_on_without_an_answer_of_the_daemon(
    start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    monkeypatch.setattr(node_tries, "_ANSWER_SECONDS", 1.0)  # for the daemon that is stopped
    async with Starts(daemon.settings) as starts:
        for name, number in (("a", signal.SIGSTOP), ("b", signal.SIGKILL)):
            os.kill(daemon.process.pid, number)
            assert await starts.start(name) in NODES
            assert caplog.text.count("no daemon has answered at") == 1
            caplog.clear()


async def test_a_start_that_waits_logs_a_missing_daemon_once(
    start_daemon: Callable[..., Daemon], caplog: pytest.LogCaptureFixture
) -> None:
    daemon = start_daemon()
    async with Starts(daemon.settings) as starts:
        first = await starts.start("a", 1.0)
        await starts.start("b", 1.0)
        daemon.kill()
        waiting = asyncio.ensure_future(starts.start("c", 1.0))
        while not START_QUEUE.records():
            await asyncio.sleep(0.05)
        await starts.end("a")
        assert await waiting == first
    assert caplog.text.count("no daemon has answered at") == 1


@pytest.mark.parametrize("first", [KILLS * number for number in range(TESTS_OF_KILLS)])
async def test_starts_go_on_while_the_daemon_is_killed(start_daemon: Callable[..., Daemon], first: int) -> None:
    """A running kernel keeps its variables, and can be interrupted meanwhile."""
    daemon = start_daemon()
    async with Starts(daemon.settings) as starts:
        await starts.start("running")
        async with starts.client("running") as running:
            assert (await reply_to(running, running.execute("x = 41")))["status"] == "ok"
            for number in range(first, first + KILLS):
                pair = [asyncio.ensure_future(starts.start(f"{name}{number}", 0.5)) for name in ("a", "b")]
                await asyncio.sleep(0.02 * (number % 25))  # the kills fall on different moments of the starts
                daemon.kill()
                endless = running.execute(ENDLESS_CELL, stop_on_error=False)
                while (await running.get_iopub_msg(timeout=WAIT))["msg_type"] != "stream":
                    pass
                await starts.interrupt("running")
                assert (await reply_to(running, endless))["ename"] == "KeyboardInterrupt"
                await asyncio.gather(*pair)
                for name in ("a", "b"):
                    await starts.end(f"{name}{number}")
                await asyncio.to_thread(daemon.start)
            assert (await reply_to(running, running.execute("assert x == 41")))["status"] == "ok"
        await starts.end("running")
        await asyncio.to_thread(wait_until, lambda: sum(clients(daemon)) == 0, WAIT)
        assert all(not node["bookings"] for node in daemon.nodes().values()), "a new daemon knows no booking"
