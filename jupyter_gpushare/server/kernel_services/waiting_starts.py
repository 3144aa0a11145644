"""Starts of kernels of this server that wait for a node with room, as pages see them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...cluster.start_queue import START_QUEUE
from .kernel_adoption import api_path

_END_SECONDS = 10.0  # for nodes that try a start
_POLL_SECONDS = 0.05
_CANCELLATION = "the start has been cancelled while it waited for a node with room"


class WaitingStarts:
    """Waiting starts of this process. `root` is the folder of the notebooks.

    `changed` is called after each change that pages show.
    """

    def __init__(self, root: Path, changed: Callable[[], None]) -> None:
        self._root = root
        self._changed = changed

    def begin(self) -> None:
        """Report changes from now on, from whatever thread, in the present event loop."""
        loop = asyncio.get_running_loop()

        def report() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._changed)

        START_QUEUE.open()
        START_QUEUE.on_change = report

    async def close(self) -> None:
        """Fail all waiting starts, and wait until they have failed, because the end of the server breaks off at one."""
        START_QUEUE.on_change = lambda: None
        START_QUEUE.close()
        end = time.monotonic() + _END_SECONDS
        while START_QUEUE.records() and time.monotonic() < end:
            await asyncio.sleep(_POLL_SECONDS)

    def snapshot(self) -> list[dict[str, Any]]:
        """Return the waiting starts for the snapshot, the first one first."""
        return [start.view(api_path(start.session, self._root)) for start in START_QUEUE.records()]

    def cancel(self, kernel: str) -> bool:
        """Fail the waiting start of a kernel. Return false if there is none."""
        return START_QUEUE.cancel(kernel, _CANCELLATION)
