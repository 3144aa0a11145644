"""Interrupts of kernels whose turn does not end, for the setting `overrun = "interrupt"`.

The coordinator cannot interrupt kernels: it may run as another user, and only this server has the interrupt mode of a
kernel.
So the coordinator's snapshot lists the kernels, and this server does the same as the stop button.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .kernels import Kernels


class OverrunInterrupter:
    """Interrupter that interrupts a kernel once for each overrun, for any number of snapshots."""

    def __init__(self, kernels: Kernels, log: logging.Logger) -> None:
        self._kernels = kernels
        self._log = log
        self._requested: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_snapshot(self, _: dict[str, Any] | None, status: dict[str, Any]) -> None:
        """Interrupt the kernels that a new snapshot lists."""
        requested = {client["id"] for client in status["clients"] if client["interrupt_requested"]}
        new, self._requested = requested - self._requested, requested
        for kernel_id in self._kernels.of_clients(new, status):
            task = asyncio.get_running_loop().create_task(self._interrupt(kernel_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _interrupt(self, kernel_id: str) -> None:
        self._log.warning("interrupting kernel %s because its GPU turn has not ended in time", kernel_id)
        try:
            await self._kernels.interrupt(kernel_id)
        except Exception as error:  # A provisioner may raise any error, and the kernel may have ended.
            self._log.warning("could not interrupt kernel %s: %s", kernel_id, error)
