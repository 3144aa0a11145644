"""Tests of the stop key of a terminal during the start of a blocking manager."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster import kernel_records
from jupyter_gpushare.cluster.channel.messages import NodeError
from jupyter_gpushare.cluster.pending_start import cancelled_by_interrupt
from jupyter_gpushare.cluster.remote_provisioner import RemoteProvisioner
from jupyter_gpushare.cluster.start_queue import StartQueue, WaitingStart

from ..support.polling import wait_until
from .conftest import WAIT, RemoteNotebook, separate_nodes
from .test_start_queue import waiting


@pytest.fixture(autouse=True)
def default_handler() -> Iterator[None]:
    """Let the stop key raise KeyboardInterrupt, as in a Python program."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def press() -> None:
    """Press the stop key. Python runs the handler at once in the main thread."""
    signal.raise_signal(signal.SIGINT)


def test_the_stop_key_ends_the_waiting_start_of_a_blocking_manager(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path
) -> None:
    config = Config({"GpuShareCluster": separate_nodes(tmp_path), "RemoteProvisioner": {"share": 1.0, "node": "n1"}})
    first, second = (KernelManager(kernel_name="remote", config=config) for _ in range(2))
    first.start_kernel()

    def stop() -> None:
        wait_until(waiting, WAIT)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        second.start_kernel()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    thread.join()
    assert waiting() == [] and not second.has_kernel
    first.shutdown_kernel(now=True)
    second.start_kernel()
    second.shutdown_kernel(now=True)


def test_the_stop_key_in_the_last_step_of_a_start_leaves_no_kernel(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_here = RemoteProvisioner._start_here

    async def stopped(provisioner: RemoteProvisioner, request: Any) -> Any:
        info = await start_here(provisioner, request)
        press()
        return info

    monkeypatch.setattr(RemoteProvisioner, "_start_here", stopped)
    settings = {**separate_nodes(tmp_path), "room_timeout": "0"}
    config = Config({"GpuShareCluster": settings, "RemoteProvisioner": {"node": "n1"}})
    manager = KernelManager(kernel_name="remote", config=config)
    with pytest.raises(KeyboardInterrupt):
        manager.start_kernel()
    assert not manager.has_kernel and not kernel_records.load(manager.kernel_id)
    wait_until(lambda: not list(tmp_path.glob("n1/state/gpushare/*/kernels/*")), WAIT)


def test_a_start_keeps_the_handler_that_the_program_has_set_meanwhile(loop: asyncio.AbstractEventLoop) -> None:
    def handler(*_: object) -> None:
        pass

    async def start() -> None:
        with cancelled_by_interrupt():
            signal.signal(signal.SIGINT, handler)

    loop.run_until_complete(start())
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_stop_key_stops_a_program_whose_event_loop_has_left_the_start(loop: asyncio.AbstractEventLoop) -> None:
    async def start() -> None:
        with cancelled_by_interrupt():
            loop.stop()
            await asyncio.Event().wait()

    task = loop.create_task(start())
    loop.run_forever()
    with pytest.raises(KeyboardInterrupt):
        press()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(task)


def test_a_start_whose_event_loop_has_been_stopped_leaves_the_looks_to_others(
    loop: asyncio.AbstractEventLoop,
) -> None:
    queue, looks = StartQueue(), threading.Event()
    has_room = False

    async def attempt() -> str:
        if not has_room:
            raise NodeError("the node has no room", "no_room")
        return "started"

    async def endless_look(_: Sequence[str]) -> dict[str, Any]:
        looks.set()
        await asyncio.Event().wait()
        return {}

    async def look(nodes: Sequence[str]) -> dict[str, Any]:
        return {}

    async def first() -> None:
        with cancelled_by_interrupt():
            await queue.wait(WaitingStart("a", "", "", ["n1"]), attempt, endless_look, 600.0)

    def stop() -> None:
        assert looks.wait(WAIT)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=stop)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(first())
    thread.join()
    has_room = True

    async def second() -> str:
        return await queue.wait(WaitingStart("b", "", "", ["n1"]), attempt, look, WAIT)

    assert asyncio.run(second()) == "started"
