"""Following the coordinator from a daemon thread, as long as somebody looks."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import Any, NamedTuple

from ..wire.client import AsyncClient, CoordinatorError

MIN_REDRAW_SECONDS = 0.5  # seconds between two snapshots that are shown
CLOCK_SECONDS = 1.0  # seconds after which times that pass by themselves are shown anew
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.25, 5.0  # seconds between attempts to reach a coordinator
_STOP_TIMEOUT_SECONDS = 2.0  # seconds


class StatusUpdate(NamedTuple):
    """What is known of the coordinator since `at`, by `time.monotonic`.

    Either its last `status`, or the `problem` that keeps it away; neither: it has not been asked yet.
    """

    status: dict[str, Any] | None = None
    at: float = 0.0
    problem: str = ""


class StatusSubscription:
    """Calls a method with what is seen: upon changes, at most twice a second, and again each second.

    The method is called in this thread. The thread ends with `stop`, or when nobody refers to the method's object any
    more; its connection ends with it.
    """

    def __init__(self, path: str, show: Callable[[StatusUpdate], None]) -> None:
        self._path = path
        self._on_update = weakref.WeakMethod(show)
        self._latest = StatusUpdate(at=monotonic())
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="gpushare-view", daemon=True)
        # Debuggers are to leave this thread alone.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread and its connection; from any thread, and more than once."""
        again = self._stopped.is_set()
        self._stopped.set()  # before looking at the task: one that comes later sees it
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not again:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread() and not sys.is_finalizing():
            self._thread.join(_STOP_TIMEOUT_SECONDS)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        following = asyncio.create_task(self._follow())
        try:
            # `_over` is looked at for a stop that came before there was a task to cancel.
            while not self._stopped.is_set() and self._notify() and not following.done():
                await asyncio.wait([following], timeout=CLOCK_SECONDS)
            if following.done():
                following.result()
        finally:
            # More than once: before Python 3.12, `wait_for` loses a cancellation that comes with its result.
            while not following.done():
                following.cancel()
                await asyncio.wait([following], timeout=0.1)

    async def _follow(self) -> None:
        pause = MIN_RETRY_SECONDS
        while True:
            try:
                client = await AsyncClient.connect(self._path)
                try:
                    async for status in client.subscribe():
                        pause = MIN_RETRY_SECONDS
                        self._latest = StatusUpdate(status, monotonic())
                        self._notify()
                        await asyncio.sleep(MIN_REDRAW_SECONDS)
                finally:
                    await client.close()
            except CoordinatorError as error:
                self._latest = StatusUpdate(None, monotonic(), str(error))
                self._notify()
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_RETRY_SECONDS)

    def _notify(self) -> bool:
        """False when nobody is there any more to be told."""
        show = self._on_update()
        if show is not None:
            show(self._latest)
        return show is not None
