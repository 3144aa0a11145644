"""Subscription to the coordinator's snapshots in a daemon thread, while a page shows the view."""

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

MIN_REDRAW_SECONDS = 0.5  # between two snapshots in the view
CLOCK_SECONDS = 1.0  # between two updates of the times in the view
MIN_RETRY_SECONDS, MAX_RETRY_SECONDS = 0.25, 5.0  # between attempts to connect to a coordinator
_STOP_TIMEOUT_SECONDS = 2.0


class StatusUpdate(NamedTuple):
    """State of the coordinator since the time `at` of `time.monotonic`.

    The state is the last snapshot `status`, or the `problem` of the connection, or neither before the first answer.
    """

    status: dict[str, Any] | None = None
    at: float = 0.0
    problem: str = ""


class StatusSubscription:
    """Subscription that calls a method with each update: at most twice a second, and at least once a second.

    The subscription's thread calls the method.
    The thread and its connection end with `stop`, or after the method's object has become unreachable.
    """

    def __init__(self, path: str, show: Callable[[StatusUpdate], None]) -> None:
        self._path = path
        self._on_update = weakref.WeakMethod(show)
        self._latest = StatusUpdate(at=monotonic())
        self._stopped = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread = threading.Thread(target=self._run, name="gpushare-view", daemon=True)
        # Debuggers must not stop or trace this thread.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]

    def start(self) -> None:
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread and its connection. Any thread may call the method, also repeatedly."""
        was_stopped = self._stopped.is_set()
        self._stopped.set()  # before the read of the task, because a task that starts later checks the event
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not was_stopped:
            with contextlib.suppress(RuntimeError):  # The thread has ended and closed the loop.
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
            # The check of `_stopped` is for a stop before the task existed.
            while not self._stopped.is_set() and self._notify() and not following.done():
                await asyncio.wait([following], timeout=CLOCK_SECONDS)
            if following.done():
                following.result()
        finally:
            # Before Python 3.12, `wait_for` loses a cancellation that comes with its result: hence the loop.
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
        """Call the method, and return false if its object no longer exists."""
        show = self._on_update()
        if show is not None:
            show(self._latest)
        return show is not None
