"""Kernels whose turn does not end and that the coordinator asks to interrupt what they run (`overrun = "interrupt"`).

The coordinator may be another user's and signal nobody here; and only this server knows whether a kernel takes a signal
or a message. So it says in its snapshot who is asked, and what the stop button does is done here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from .kernels import Kernels


class OverrunInterrupter:
    """Once for each turn, however many snapshots say it."""

    def __init__(self, kernels: Kernels, log: logging.Logger) -> None:
        self._kernels = kernels
        self._log = log
        self._asked: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_snapshot(self, status: dict[str, Any]) -> None:
        """A snapshot."""
        asked = {client["id"] for client in status["clients"] if client["interrupt_asked"]}
        news, self._asked = asked - self._asked, asked
        for kernel_id in self._kernels.of_clients(news, status):
            task = asyncio.get_running_loop().create_task(self._interrupt(kernel_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _interrupt(self, kernel_id: str) -> None:
        self._log.warning("GPU sharing: kernel %s is interrupted: its turn is over and does not end", kernel_id)
        try:
            await self._kernels.interrupt(kernel_id)
        except Exception as error:  # of any provisioner, and of kernels that end meanwhile
            self._log.warning("GPU sharing: kernel %s could not be interrupted: %s", kernel_id, error)
