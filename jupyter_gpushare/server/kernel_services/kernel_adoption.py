"""Adoption of kernels on nodes that an earlier Jupyter server of the user has left, after it was killed for example.

The kernel keeps its id, and its notebook gets a session, so that an open page goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_core.utils import ensure_async
from traitlets import TraitError

from ...cluster import kernel_records
from ...cluster.kernel_records import KernelRecord

if TYPE_CHECKING:
    from ...cluster.settings import GpuShareCluster

_RETRY_SECONDS = (1.0, 5.0, 15.0, 60.0)  # between the tries to reach a node; the last one repeats


class KernelAdoption:
    """Adoption at the start of a Jupyter server. `root` is the folder of its notebooks."""

    def __init__(self, server: Any, root: Path, log: logging.Logger) -> None:
        self._server = server
        self._root = root
        self._log = log
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        """Adopt the kernels in the background, except those of another root folder or engine.

        The server of that folder adopts its kernels with their notebooks, and only that engine reaches their nodes.
        """
        records = list(kernel_records.without_server())
        if not records:
            return
        from ...cluster.settings import GpuShareCluster

        try:
            settings = GpuShareCluster(parent=self._server)
        except TraitError as error:
            self._log.error("cannot adopt kernels on nodes: %s", error)
            return
        own = [
            record
            for record in records
            if record.has_root(self._root) and record.has_engine(settings.engine_digest(record.node))
        ]
        if others := ", ".join(f"{record.kernel} on {record.node}" for record in records if record not in own):
            words = "left for a Jupyter server with their root folder and engine (c.GpuShareCluster): kernels %s"
            self._log.warning(words, others)
        for record in own:
            self._tasks.append(asyncio.get_running_loop().create_task(self._adopt(record, settings)))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _adopt(self, record: KernelRecord, settings: GpuShareCluster) -> None:
        """Adopt a kernel as soon as its node answers."""
        from ...cluster.channel.messages import NodeError

        if kernel_records.claim(record.kernel) is None:  # another server of the user was first
            return
        for number in range(1 << 30):
            try:
                if await self._is_running(record, settings):
                    await self._start(record)
                else:
                    self._log.warning("kernel %s on %s has ended without a Jupyter server", record.kernel, record.node)
                    kernel_records.remove(record.kernel)
                return
            except (NodeError, asyncio.TimeoutError) as error:
                self._log.warning("cannot adopt kernel %s on %s yet: %s", record.kernel, record.node, error)
                await asyncio.sleep(_RETRY_SECONDS[min(number, len(_RETRY_SECONDS) - 1)])
            except Exception:  # of a manager of the server, which may be another package's
                self._log.exception("cannot adopt kernel %s on %s", record.kernel, record.node)
                return

    async def _is_running(self, record: KernelRecord, settings: GpuShareCluster) -> bool:
        """Return whether the node still has the kernel. Raise NodeError."""
        from ...cluster.channel.messages import Forget, Running
        from ...cluster.node_connection import CONNECTIONS

        command = settings.command(record.node)
        connection = await asyncio.to_thread(CONNECTIONS.connection, record.node, command)
        answer = asyncio.wrap_future(connection.request(Running()))
        kernels = await asyncio.wait_for(answer, settings.start_seconds)
        if any(one["kernel"] == record.kernel for one in kernels):
            return True
        forget = connection.request(Forget(kernel=record.kernel))
        await asyncio.wait_for(asyncio.wrap_future(forget), settings.start_seconds)
        return False

    async def _start(self, record: KernelRecord) -> None:
        """Let the server's managers start the kernel, whose provisioner adopts it instead."""
        names: dict[str, Any] = {"kernel_name": record.kernel_name, "kernel_id": record.kernel}
        path = api_path(record.session, self._root)
        if path:
            names |= {"path": path, "name": os.path.basename(path), "type": "notebook"}
            await ensure_async(self._server.session_manager.create_session(**names))
        else:
            await ensure_async(self._server.kernel_manager.start_kernel(**names))


def api_path(session: str, root: Path) -> str:
    """Return the path of a notebook below the server's folder, or "" for another session or none."""
    with contextlib.suppress(ValueError):
        return Path(session).relative_to(root).as_posix() if session else ""
    return ""
