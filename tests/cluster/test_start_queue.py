"""Tests of starts that wait for a node with room, with kernels that take a whole device each."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster import kernel_records, start_queue, start_records
from jupyter_gpushare.cluster.channel.messages import NodeError, Start
from jupyter_gpushare.cluster.daemon.node_tries import NodeTries
from jupyter_gpushare.cluster.node_connection import CONNECTIONS
from jupyter_gpushare.cluster.remote_provisioner import RemoteProvisioner
from jupyter_gpushare.cluster.start_queue import START_QUEUE, StartQueue, WaitingStart

from .conftest import NODES, WAIT, RemoteNotebook, separate_nodes

POLL_SECONDS = 0.05


async def wait_for(is_expected: Callable[[], Any]) -> None:
    end = time.monotonic() + WAIT
    while not is_expected():
        assert time.monotonic() < end
        await asyncio.sleep(POLL_SECONDS)


def waiting() -> list[str]:
    return [start.kernel for start in START_QUEUE.records()]


class Kernels:
    """Kernels that each take all of a device, on nodes with one device each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tasks: dict[str, asyncio.Future[None]] = {}
        self.managers: dict[str, AsyncKernelManager] = {}

    def begin(
        self, name: str, share: float = 1.0, node: str = "", folder: str | None = None, **settings: Any
    ) -> asyncio.Future[None]:
        """Begin to start a kernel in this working directory."""
        config = Config(
            {
                "GpuShareCluster": {**separate_nodes(self._folder), **settings},
                "RemoteProvisioner": {"share": share, "node": node},
            }
        )
        manager = self.managers[name] = AsyncKernelManager(kernel_name="remote", config=config)
        task = self._tasks[name] = asyncio.ensure_future(manager.start_kernel(kernel_id=name, cwd=folder))
        return task

    async def start(self, name: str, **options: Any) -> str:
        """Start a kernel, and return its node."""
        await asyncio.wait_for(self.begin(name, **options), WAIT)
        return self.node_of(name)

    async def wait_in_queue(self, name: str, **options: Any) -> asyncio.Future[None]:
        """Begin the start of a kernel, and return when the start waits."""
        task = self.begin(name, **options)
        await wait_for(lambda: name in waiting())
        return task

    async def restart_in_queue(self, name: str) -> asyncio.Future[None]:
        """Lose the node of a kernel, begin a restart, and return when that start waits."""
        lost = self.node_of(name)
        (self._folder / f"{lost}.lost").touch()
        next(one for one in CONNECTIONS.present() if one.node == lost).end()
        restart = asyncio.ensure_future(self.managers[name].restart_kernel(now=True))
        await wait_for(lambda: name in waiting())
        return restart

    async def end(self, name: str) -> None:
        await self.managers[name].shutdown_kernel(now=True)

    def node_of(self, name: str) -> str:
        return str(self.managers[name].provisioner.node_name)  # type: ignore[union-attr]

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        for name, manager in self.managers.items():
            START_QUEUE.cancel(name, "the test ends")
            with contextlib.suppress(NodeError):
                await self._tasks[name]
            if manager.has_kernel:
                await self.end(name)
        assert not waiting()
        assert not list(start_records.waiting())


@pytest.fixture
def kernels(start_notebook: Callable[..., RemoteNotebook], tmp_path: Path) -> Kernels:
    return Kernels(tmp_path)


async def failure_of(start: Awaitable[None]) -> str:
    with pytest.raises(NodeError) as failure:
        await asyncio.wait_for(start, WAIT)
    return str(failure.value)


async def test_waiting_starts_find_room_in_their_order(kernels: Kernels) -> None:
    async with kernels:
        assert {await kernels.start(name) for name in ("a", "b")} == set(NODES)
        second = await kernels.wait_in_queue("second")
        third = await kernels.wait_in_queue("third")
        await kernels.end("a")
        await asyncio.wait_for(second, WAIT)
        assert waiting() == ["third"] and not third.done()
        await kernels.end("second")
        await asyncio.wait_for(third, WAIT)
        assert {kernels.node_of("b"), kernels.node_of("third")} == set(NODES)


async def test_a_new_start_does_not_pass_one_that_waits(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", nodes=["n1"])
        waits = await kernels.wait_in_queue("waits", nodes=["n1"])
        await kernels.end("a")
        new = kernels.begin("new", nodes=["n1"])
        await asyncio.wait_for(waits, WAIT)
        await wait_for(lambda: waiting() == ["new"])
        assert not new.done()


async def test_a_start_on_another_node_passes_one_that_waits(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        await kernels.wait_in_queue("waits", node="n1")
        assert await kernels.start("b", node="n2") == "n2"
        assert waiting() == ["waits"]


async def test_a_kernel_that_restarts_keeps_its_room(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        await kernels.wait_in_queue("waits", node="n1")
        await asyncio.wait_for(kernels.managers["a"].restart_kernel(now=True), WAIT)
        assert waiting() == ["waits"]
        assert await kernels.managers["a"].is_alive()


async def test_a_smaller_start_passes_one_that_finds_no_room(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1", share=0.5)
        await kernels.wait_in_queue("large", node="n1")
        await kernels.start("small", node="n1", share=0.25)
        assert waiting() == ["large"]


async def test_people_see_why_and_since_when_a_start_waits(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1", share=0.75)
        await kernels.wait_in_queue("waits", node="n1")
        (start,) = start_records.waiting()
        assert (start.kernel, start.label, start.nodes, start.position) == ("waits", "remote", ["n1"], 1)
        assert "no 1 device for share=1: device 0 (Simulated GPU" in start.message
        assert start.message.endswith("has 0.25 of its share left")


async def test_the_wait_is_estimated_from_the_last_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the test's time, the first start finds room after three minutes."""
    now, room = [1000.0], {"first": False, "second": False}
    monkeypatch.setattr("jupyter_gpushare.cluster.start_queue.time.time", lambda: now[0])
    queue = StartQueue()

    async def look(nodes: Sequence[str]) -> dict[str, Any]:
        clients = [{"id": kernel, "devices": [], "quota": {}} for kernel, has_room in room.items() if not has_room]
        return {node: {"clients": clients, "devices": []} for node in nodes}

    def begin(kernel: str) -> asyncio.Task[str]:
        async def attempt() -> str:
            if not room[kernel]:
                raise NodeError("the node has no room", "no_room")
            return kernel

        return asyncio.create_task(queue.wait(WaitingStart(kernel, "", "", ["n1"]), attempt, look, 600.0))

    tasks = [begin(kernel) for kernel in room]
    await wait_for(lambda: len(queue.records()) == 2)
    assert [start.expected_at for start in queue.records()] == [None, None]
    now[0], room["first"] = 1180.0, True
    assert await tasks[0] == "first"
    assert [(start.position, start.expected_at) for start in queue.records()] == [(1, 1360.0)]
    now[0] = 1361.0
    assert [start.expected_at for start in queue.records()] == [None], "the wait is longer than those before"
    room["second"] = True
    assert await tasks[1] == "second"


async def test_a_start_tries_again_soon_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster daemon knows the nodes of a moment ago, so the first try after a change may find no room."""
    monkeypatch.setattr(start_queue, "_RETRY_SECONDS", 600.0)
    clients: list[dict[str, Any]] = [{"id": "other", "devices": [], "quota": {}}]
    tries_with_room: list[bool] = []

    async def look(nodes: Sequence[str]) -> dict[str, Any]:
        return {node: {"clients": list(clients), "devices": []} for node in nodes}

    async def attempt() -> str:
        tries_with_room.append(not clients)
        if tries_with_room.count(True) < 2:
            raise NodeError("the daemon knows no room", "no_room")
        return "started"

    queue = StartQueue()
    task = asyncio.create_task(queue.wait(WaitingStart("k", "", "", ["n1"]), attempt, look, 600.0))
    await wait_for(lambda: len(tries_with_room) == 2)
    clients.clear()
    assert await asyncio.wait_for(task, WAIT) == "started"


async def test_a_start_fails_after_the_time_for_room_and_leaves_nothing(kernels: Kernels, tmp_path: Path) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        message = await failure_of(kernels.begin("late", node="n1", room_timeout="0.1s"))
        assert message.startswith("the node has no room for the kernel: no 1 device for share=1: ")
        assert message.endswith("; the start has waited for 100 ms (c.GpuShareCluster.room_timeout)")
        assert [folder.name for folder in tmp_path.glob("n1/state/gpushare/*/kernels/*")] == ["a"]
        assert waiting() == []


async def test_without_time_for_room_a_start_fails_at_once(kernels: Kernels) -> None:
    async with kernels:
        for name, node in (("a", "n1"), ("b", "n2")):
            await kernels.start(name, node=node)
        message = await failure_of(kernels.begin("late", room_timeout="0"))
        assert message.startswith("no node has room for the kernel: n")
        assert "room_timeout" not in message
        assert waiting() == []


async def test_a_cancelled_start_fails_with_the_reason(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        waits = await kernels.wait_in_queue("waits", node="n1")
        assert START_QUEUE.cancel("waits", "the user has cancelled the start")
        assert await failure_of(waits) == "the user has cancelled the start"
        assert not START_QUEUE.cancel("waits", "again")


async def test_a_start_that_is_cancelled_while_a_node_starts_the_kernel_leaves_nothing(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    start_here = RemoteProvisioner._start_here

    async def cancelled(provisioner: RemoteProvisioner, request: Start) -> Any:
        info = await start_here(provisioner, request)
        START_QUEUE.cancel(request.kernel, "the user has cancelled the start")
        return info

    async with kernels:
        await kernels.start("a", node="n1")
        waits = await kernels.wait_in_queue("waits", node="n1")
        monkeypatch.setattr(RemoteProvisioner, "_start_here", cancelled)
        await kernels.end("a")
        assert await failure_of(waits) == "the user has cancelled the start"
        await wait_for(lambda: [folder.name for folder in tmp_path.glob("n1/state/gpushare/*/kernels/*")] == [])
        assert "has ended" not in caplog.text and "ended with status" not in caplog.text


async def test_a_start_that_is_cancelled_after_the_node_has_answered_leaves_nothing(
    kernels: Kernels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start still reports to a cluster daemon that does not answer."""
    start, has_started = NodeTries.start, asyncio.Event()

    async def never_ending(tries: NodeTries, attempt: Any) -> Any:
        await start(tries, attempt)
        has_started.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(NodeTries, "start", never_ending)
    task = kernels.begin("a", node="n1")
    await asyncio.wait_for(has_started.wait(), WAIT)
    assert kernel_records.load("a")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not kernel_records.load("a") and not kernels.managers["a"].has_kernel
    await wait_for(lambda: not list(tmp_path.glob("n1/state/gpushare/*/kernels/*")))


async def test_a_waiting_start_fails_when_its_manager_removes_its_resources(kernels: Kernels) -> None:
    """nbclient does that at the stop key, without a shutdown."""
    async with kernels:
        await kernels.start("a", node="n1")
        waits = await kernels.wait_in_queue("waits", node="n1")
        await kernels.managers["waits"].cleanup_resources()
        assert await failure_of(waits) == "the kernel restarts or ends while its start waits for a node"


async def test_a_kernel_whose_restart_waits_can_be_shut_down(kernels: Kernels, tmp_path: Path) -> None:
    """The node of the kernel is lost, and the other node has no room."""
    async with kernels:
        other = await kernels.start("a")
        await kernels.start("b")
        restart = await kernels.restart_in_queue("b")
        manager = kernels.managers["b"]
        await manager.shutdown_kernel(now=True)
        with pytest.raises((NodeError, asyncio.InvalidStateError)):  # jupyter_client has ended the restart already
            await asyncio.wait_for(restart, WAIT)
        assert not manager.has_kernel
        assert [folder.name for folder in tmp_path.glob(f"{other}/state/gpushare/*/kernels/*")] == ["a"]


async def test_a_kernel_whose_restart_waits_can_restart_again(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a")
        await kernels.start("b")
        first = await kernels.restart_in_queue("b")
        manager = kernels.managers["b"]
        since = START_QUEUE.records()[0].since
        second = asyncio.ensure_future(manager.restart_kernel(now=True))
        await wait_for(lambda: [start.since > since for start in START_QUEUE.records()] == [True])
        await kernels.end("a")
        await asyncio.wait_for(second, WAIT)
        assert await manager.is_alive()
        with pytest.raises((NodeError, asyncio.InvalidStateError)):
            await asyncio.wait_for(first, WAIT)


async def test_the_end_of_the_server_fails_the_waiting_starts(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        waits = await kernels.wait_in_queue("waits", node="n1")
        START_QUEUE.close()
        try:
            assert await failure_of(waits) == "the Jupyter server has ended while the kernel waited for a node"
            assert "the Jupyter server has ended" in await failure_of(kernels.begin("later", node="n1"))
        finally:
            START_QUEUE.open()


def test_a_start_whose_event_loop_has_been_closed_hinders_no_end() -> None:
    queue, loop = StartQueue(), asyncio.new_event_loop()

    async def attempt() -> None:
        raise NodeError("the node has no room", "no_room")

    async def look(_: Sequence[str]) -> dict[str, Any]:
        return {}

    async def begin() -> None:
        loop.create_task(queue.wait(WaitingStart("a", "", "", ["n1"]), attempt, look, WAIT))
        while not queue.records():
            await asyncio.sleep(0)

    loop.set_exception_handler(lambda *_: None)  # which gets asyncio's warnings about the tasks
    loop.run_until_complete(begin())
    loop.close()
    assert queue.cancel("a", "the kernel ends")
    queue.close()


async def test_other_refusals_fail_at_once(kernels: Kernels) -> None:
    async with kernels:
        await kernels.start("a", node="n1")
        message = await failure_of(kernels.begin("wrong", node="n1", folder="/nosuch"))
        assert message == "the node has no folder /nosuch"
