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

PACE = 0.5  # seconds between two snapshots that are shown
TICK = 1.0  # seconds after which times that pass by themselves are shown anew
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0  # seconds between attempts to reach a coordinator
_ENDS_WITHIN = 2.0  # seconds


class Seen(NamedTuple):
    """What is known of the coordinator since `at`, by `time.monotonic`.

    Either its last `status`, or the `problem` that keeps it away; neither: it has not been asked yet.
    """

    status: dict[str, Any] | None = None
    at: float = 0.0
    problem: str = ""


class Follower:
    """Calls a method with what is seen: upon changes, at most twice a second, and again each second.

    The method is called in this thread. The thread ends with `stop`, or when nobody refers to the method's object any
    more; its connection ends with it.
    """

    def __init__(self, path: str, show: Callable[[Seen], None]) -> None:
        self._path = path
        self._show = weakref.WeakMethod(show)
        self._seen = Seen(at=monotonic())
        self._over = threading.Event()
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
        again = self._over.is_set()
        self._over.set()  # before looking at the task: one that comes later sees it
        loop, task = self._loop, self._task
        if loop is not None and task is not None and not again:
            with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread() and not sys.is_finalizing():
            self._thread.join(_ENDS_WITHIN)

    def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._main())

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        following = asyncio.create_task(self._follow())
        try:
            # `_over` is looked at for a stop that came before there was a task to cancel.
            while not self._over.is_set() and self._tell() and not following.done():
                await asyncio.wait([following], timeout=TICK)
            if following.done():
                following.result()
        finally:
            # More than once: before Python 3.12, `wait_for` loses a cancellation that comes with its result.
            while not following.done():
                following.cancel()
                await asyncio.wait([following], timeout=0.1)

    async def _follow(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                client = await AsyncClient.connect(self._path)
                try:
                    async for status in client.subscribe():
                        pause = FIRST_PAUSE
                        self._seen = Seen(status, monotonic())
                        self._tell()
                        await asyncio.sleep(PACE)
                finally:
                    await client.close()
            except CoordinatorError as error:
                self._seen = Seen(None, monotonic(), str(error))
                self._tell()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _tell(self) -> bool:
        """False when nobody is there any more to be told."""
        show = self._show()
        if show is not None:
            show(self._seen)
        return show is not None
