"""Tests of waiting starts under a manager with pending kernels, whose starts return at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.multikernelmanager import AsyncMultiKernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster.channel.messages import NodeError
from jupyter_gpushare.cluster.remote_provisioner import RemoteProvisioner
from jupyter_gpushare.cluster.start_queue import START_QUEUE

from .conftest import WAIT, RemoteNotebook, separate_nodes
from .test_start_queue import failure_of, wait_for, waiting


class PendingKernels:
    """Manager of kernels that each take the only device of a node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        provisioner = {"share": 1.0, "node": "n1"}
        config = Config({"GpuShareCluster": separate_nodes(folder), "RemoteProvisioner": provisioner})
        self.manager = AsyncMultiKernelManager(
            config=config, default_kernel_name="remote", use_pending_kernels=True, connection_dir=str(folder)
        )

    async def start(self) -> str:
        kernel = str(await self.manager.start_kernel())
        await self.ready(kernel)
        return kernel

    async def wait_in_queue(self) -> str:
        kernel = str(await self.manager.start_kernel())
        await wait_for(lambda: kernel in waiting())
        return kernel

    async def ready(self, kernel: str) -> None:
        await asyncio.wait_for(asyncio.shield(self.manager.get_kernel(kernel).ready), WAIT)

    async def on_node(self, *kernels: str) -> None:
        """Wait until the node has these kernels, and assert that the manager has no other ones."""
        files = lambda: {folder.name for folder in self._folder.glob("n1/state/gpushare/*/kernels/*")}  # noqa: E731
        await wait_for(lambda: files() == {*kernels})
        assert {*self.manager.list_kernel_ids()} == {*kernels} and waiting() == []

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *_: object) -> None:
        await self.manager.shutdown_all(now=True)
        await self.on_node()


@pytest.fixture
def kernels(start_notebook: Callable[..., RemoteNotebook], tmp_path: Path) -> PendingKernels:
    return PendingKernels(tmp_path)


async def test_a_waiting_start_finds_room(kernels: PendingKernels) -> None:
    async with kernels:
        first = await kernels.start()
        second = await kernels.wait_in_queue()
        await kernels.manager.shutdown_kernel(first, now=True)
        await kernels.ready(second)
        await kernels.on_node(second)


async def test_the_kernel_of_a_waiting_start_can_be_shut_down(kernels: PendingKernels) -> None:
    async with kernels:
        first = await kernels.start()
        second = await kernels.wait_in_queue()
        await asyncio.wait_for(kernels.manager.shutdown_kernel(second), WAIT)
        await kernels.on_node(first)


async def test_a_kernel_can_be_shut_down_before_its_start_waits(
    kernels: PendingKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, begun, goes_on = RemoteProvisioner._start_on_a_node, asyncio.Event(), asyncio.Event()

    async def slow(provisioner: RemoteProvisioner, *options: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await start(provisioner, *options)

    async with kernels:
        first = await kernels.start()
        monkeypatch.setattr(RemoteProvisioner, "_start_on_a_node", slow)
        second = str(await kernels.manager.start_kernel())
        await asyncio.wait_for(begun.wait(), WAIT)
        shutdown = asyncio.ensure_future(kernels.manager.shutdown_kernel(second))
        await asyncio.sleep(0)
        goes_on.set()
        await asyncio.wait_for(shutdown, WAIT)
        await kernels.on_node(first)


async def test_a_cancelled_start_can_be_repeated(kernels: PendingKernels) -> None:
    async with kernels:
        first = await kernels.start()
        second = await kernels.wait_in_queue()
        START_QUEUE.cancel(second, "the user has cancelled the start")
        assert await failure_of(kernels.ready(second)) == "the user has cancelled the start"
        await kernels.manager.shutdown_kernel(first, now=True)
        await asyncio.wait_for(kernels.manager.restart_kernel(second), WAIT)
        await kernels.on_node(second)


async def test_the_end_of_all_kernels_ends_waiting_starts(kernels: PendingKernels) -> None:
    async with kernels:
        await kernels.start()
        second = await kernels.wait_in_queue()
        ready = kernels.manager.get_kernel(second).ready
        await asyncio.wait_for(kernels.manager.shutdown_all(now=True), WAIT)
        with pytest.raises(NodeError, match="the kernel has been shut down while its start waited for a node"):
            await ready
