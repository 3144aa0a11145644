"""Reports of the cells of kernels in other languages, from their busy and idle messages.

Python kernels report their own cells (`jupyter_gpushare.kernel.cell_reporter`).
For other kernels, the server listens to IOPub, as it does for its own record of activity, and attaches as the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import re
from collections.abc import Callable
from typing import Any

from jupyter_client.session import Session

from ...wire.client import AsyncClient, Unreachable
from ...wire.messages import Attach, Cell
from .kernels import Kernels, UnknownKernel

START_TIMEOUT_SECONDS = 10.0
RETRY_SECONDS = 1.0  # between checks of the connection while cells run

_NOT_ALLOWED = re.compile(r"[^\w.:@-]", re.ASCII)


class CellReporter:
    """Reporter of the cells of this server's shared kernels in other languages than Python.

    `address` returns the present address of the coordinator.
    """

    def __init__(self, manager: Any, kernels: Kernels, address: Callable[[], str], log: logging.Logger) -> None:
        self._manager = manager
        self._kernels = kernels
        self._address = address
        self._log = log
        self._listeners: dict[str, _Listener] = {}
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def watch(self, kernel_id: str) -> None:
        """Begin to report the cells of a kernel that starts or restarts, unless the kernel reports them itself."""
        self.unwatch(kernel_id)
        self._waiting[kernel_id] = asyncio.get_running_loop().create_task(self._watch(kernel_id))

    async def _watch(self, kernel_id: str) -> None:
        # The event about the start comes before the manager lists the kernel.
        for _ in range(int(START_TIMEOUT_SECONDS / 0.1)):
            if kernel_id in self._manager:
                break
            await asyncio.sleep(0.1)
        else:
            return
        kernel = self._manager.get_kernel(kernel_id)
        language = (getattr(kernel.kernel_spec, "language", "") or "").lower()
        if language.startswith("python"):
            return
        try:
            identity = self._kernels.identity_of(kernel_id)
        except UnknownKernel:
            return
        if identity:
            self._listeners[kernel_id] = _Listener(kernel, Attach(**identity), self._address, self._log)
            # The manager removes a kernel that has died too often without an event.
            self._manager.add_restart_callback(kernel_id, functools.partial(self.unwatch, kernel_id), "dead")

    def unwatch(self, kernel_id: str) -> None:
        """Stop reporting the cells of a kernel that has ended or that restarts."""
        if task := self._waiting.pop(kernel_id, None):
            task.cancel()
        if listener := self._listeners.pop(kernel_id, None):
            listener.close()

    @property
    def watched(self) -> set[str]:
        """Kernels whose messages the reporter receives."""
        return set(self._listeners)

    def close(self) -> None:
        for kernel_id in {*self._listeners, *self._waiting}:
            self.unwatch(kernel_id)


class _Listener:
    """Listener to one kernel.

    The listener reports the cells in their order over one connection, which begins with the first cell.
    """

    def __init__(self, kernel: Any, attach: Attach, address: Callable[[], str], log: logging.Logger) -> None:
        self._session = Session(config=kernel.session.config, key=kernel.session.key)
        self._attach = attach
        self._address = address
        self._log = log
        self._cells: asyncio.Queue[Cell] = asyncio.Queue()
        self._open: dict[str, Cell] = {}
        self._client: AsyncClient | None = None
        self._stream = kernel.connect_iopub()
        self._stream.on_recv(self._on_message)
        self._task = asyncio.get_running_loop().create_task(self._send(), name="gpushare-cells")

    def close(self) -> None:
        self._stream.close()
        self._task.cancel()

    def _on_message(self, parts: list[Any]) -> None:
        try:
            _, rest = self._session.feed_identities(parts)
            message = self._session.deserialize(rest)
        except ValueError:  # not a message, or with a wrong signature
            return
        parent = message.get("parent_header") or {}
        if message["header"]["msg_type"] != "status" or parent.get("msg_type") != "execute_request":
            return
        request = _NOT_ALLOWED.sub("-", str(parent.get("msg_id")))[:128] or "unnamed"
        if message["content"].get("execution_state") == "busy":
            self._open[request] = cell = Cell(state="start", request=request)
            self._cells.put_nowait(cell)
        elif self._open.pop(request, None):
            self._cells.put_nowait(Cell(state="end", request=request))

    async def _send(self) -> None:
        try:
            while True:
                cell: Cell | None = None
                with contextlib.suppress(asyncio.TimeoutError):
                    cell = await asyncio.wait_for(self._cells.get(), RETRY_SECONDS if self._open else None)
                try:
                    await self._send_cell(cell)
                except Unreachable as error:
                    self._log.debug("cannot report the cells of %s for GPU sharing: %s", self._attach.client, error)
                    await self._disconnect()
        finally:
            await self._disconnect()

    async def _send_cell(self, cell: Cell | None) -> None:
        """Send the report of a cell, or without a cell check the connection. Raise Unreachable.

        A new coordinator gets the reports of all running cells.
        """
        if self._client and self._client.is_disconnected:
            await self._disconnect()
        if self._client is None and self._open:
            self._client = await AsyncClient.connect(self._address())
            self._client.send(self._attach)
            for running in self._open.values():
                self._client.send(running)
        elif self._client and cell:
            self._client.send(cell)

    async def _disconnect(self) -> None:
        """Close the connection, which ends the cells for the coordinator."""
        client, self._client = self._client, None
        if client:
            with contextlib.suppress(asyncio.CancelledError):
                await client.close()
