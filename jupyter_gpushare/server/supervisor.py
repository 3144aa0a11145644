"""Keeps a coordinator alive while one is needed, and one subscription to it for everybody in this server.

Nothing is started for a server that shares no GPU. A coordinator is started for the first REST request, and
again when it goes away while clients depend on it: kernels of this server, or those that the last snapshot
showed. One that nobody uses is left alone, also by this subscription, which would keep it from ending by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..wire import messages
from ..wire.client import AsyncClient, CoordinatorError, Unreachable, ensure_coordinator_async
from . import liveness

# How often a connection is tried while somebody waits for one; on a Unix socket that costs microseconds.
POLL_SECONDS = 0.5
# Between the loss of a coordinator and starting another: whoever restarts it on purpose should win. It is also the
# time between attempts at something that listens there and takes no connection.
RESPAWN_DELAY_SECONDS = 0.25
# When starting one fails, the next attempt is made after 1, 2, 4 ... 30 seconds.
MAX_BACKOFF_SECONDS = 30.0
START_TIMEOUT_SECONDS = 5.0
NOT_RUNNING = "No coordinator is running; the first shared kernel starts one."

# These change while nothing happens. Frames for them would make an idle server look busy to a hub's proxy.
_CLOCK_FIELDS = {
    "granted_seconds",
    "seconds_left",
    "expected_wait",
    "hold_seconds_left",
    "idle_seconds",
    "evicted_in",
    "suspended_in",
    "uptime_seconds",
    "utilisation",
}


class FrameListener:
    """Somebody who wants to hear of changes: `news` is set whenever `Supervisor.frame` is another one."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.has_new_frame = asyncio.Event()
        self.task = task


class Supervisor:
    """`status` is the last snapshot, None while no coordinator answers; `frame` is what WebSockets send."""

    def __init__(
        self,
        address: str,
        argv: Callable[[], Sequence[str]],
        needed: Callable[[], bool],
        log: logging.Logger,
        connected: Callable[[dict[str, Any]], None] = lambda status: None,
        changed: Callable[[dict[str, Any] | None, dict[str, Any]], None] = lambda before, after: None,
    ) -> None:
        """`address` is "" for the usual places; `argv` the command that starts a coordinator; `needed` tells
        whether this server has kernels that depend on one; `connected` hears each one's first snapshot, `changed` each
        snapshot, with the one before.
        """
        self.status: dict[str, Any] | None = None
        self.frame = ""
        self._address = self._configured = address
        self._argv = argv
        self._needed = needed
        self._log = log
        self._connected = connected
        self._changed = changed
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._listeners: set[FrameListener] = set()
        self._last_content: Any = None
        self._client: AsyncClient | None = None
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._has_unsubscribed = False
        self._had_clients = False
        self._starting: asyncio.Task[None] | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._failure = ""

    # --- what others call

    @property
    def address(self) -> str:
        """Where the coordinator was found, or is to be looked for."""
        return self._address

    def begin(self) -> None:
        """Look for a coordinator (again), and from now on notice when it goes away."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="gpushare-supervisor")
            self._task.add_done_callback(self._report_bug)
        self._wake.set()

    def kernel_started(self) -> None:
        """A kernel of this server started. If it is a shared one it has started a coordinator, or failed to.

        jupyter_server knows it as running only a little later, hence the second look.
        """
        self.begin()
        asyncio.get_running_loop().call_later(1.0, self._wake.set)

    async def request(self, message: msgspec.Struct, start: bool = True) -> Any:
        """The result of one of `wire.messages`' requests, over a connection of its own.

        Raises Unreachable when no coordinator answers and (if `start`) none can be started, CoordinatorError
        when it refuses.
        """
        try:
            client = await self._connect()
        except Unreachable:
            if not start:
                raise
            await self._start()
            client = await self._connect()
        try:
            self.begin()
            return await client.request(message)
        finally:
            await client.close()

    @contextlib.contextmanager
    def watch(self) -> Iterator[FrameListener]:
        """Be told of changes; the task that watches is cancelled when the server stops."""
        watcher = FrameListener(asyncio.current_task())
        self._listeners.add(watcher)
        self.begin()
        try:
            yield watcher
        finally:
            self._listeners.discard(watcher)
            if self._client and not self._is_used():
                self._has_unsubscribed = True
                task = asyncio.get_running_loop().create_task(self._client.close())
                self._closing_tasks.add(task)
                task.add_done_callback(self._closing_tasks.discard)

    async def current(self) -> str:
        """The frame for a new watcher, "" if nothing is known yet: the times in the last snapshot may be old."""
        if self._client is None or self.status is None:
            return self.frame
        try:
            status = await self._client.request(messages.Status())
        except CoordinatorError:
            return self.frame
        self._publish(status)
        return _snapshot_frame(status)

    async def close(self) -> None:
        """Leave nothing behind in this process. The coordinator runs on: others may depend on it."""
        tasks = [self._task, self._starting, *self._closing_tasks, *(watcher.task for watcher in self._listeners)]
        running = {task for task in tasks if task is not None and not task.done()}
        while running:
            for task in running:
                task.cancel()
            # Until Python 3.12 `asyncio.wait_for` swallows a cancellation that comes with its result: cancel again.
            _, running = await asyncio.wait(running, timeout=0.1)
        self.status = None

    # --- the life of the subscription

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                await self._follow()
            except CoordinatorError as error:
                await self._on_disconnect(error)
            else:
                self._reset()
                await self._wake.wait()

    async def _follow(self) -> None:
        """Publish snapshots until nobody needs them. Raises CoordinatorError when the coordinator goes away."""
        self._client = client = await self._connect()
        self._has_unsubscribed = False
        heard = functools.partial(self._on_snapshot, client)
        looking = asyncio.get_running_loop().create_task(
            liveness.watch_liveness(client, self._on_hang, heard), name="gpushare-look"
        )
        looking.add_done_callback(self._report_bug)
        try:
            async for status in client.subscribe(liveness.HANG_TIMEOUT_SECONDS):
                heard(status)
                if not self._is_used():
                    return
        except Unreachable:
            if not self._has_unsubscribed:
                raise
        finally:
            self._client = None
            looking.cancel()
            await client.close()

    def _on_snapshot(self, client: AsyncClient, status: dict[str, Any]) -> None:
        if self.status is None:
            self._address = client.path
            self._backoff = self._retry_at = 0.0
            self._connected(status)
        self._publish(status)

    def _on_hang(self, message: str) -> None:
        """No other is started: this one still has the socket, and goes on where it was."""
        self._log.warning("GPU sharing: %s", message)
        if self.status is not None:
            self._had_clients = bool(self.status.get("clients"))
        self._publish_unavailable("unreachable", message)

    def _is_used(self) -> bool:
        return bool(self._listeners or (self.status and self.status.get("clients")) or self._needed())

    async def _on_disconnect(self, error: CoordinatorError) -> None:
        just_now = self.status is not None
        if self.status is not None:
            self._had_clients = bool(self.status.get("clients"))
        if not (self._had_clients or self._needed()):
            self._address = self._configured
            self._publish_unavailable("not_running", f"{NOT_RUNNING} ({error})")
            await self._wait_for_wakeup(POLL_SECONDS if self._listeners else None)
            return
        # While starting one fails, why it fails tells more than that none answers.
        self._publish_unavailable(error.reason, self._failure if self._retry_at else str(error))
        if just_now:
            self._log.warning("GPU sharing: %s; starting another coordinator", error)
        await asyncio.sleep(RESPAWN_DELAY_SECONDS)
        try:
            await self._start()
        except Unreachable as failure:
            self._publish_unavailable(failure.reason, str(failure))
            await self._wait_for_wakeup(POLL_SECONDS)

    async def _wait_for_wakeup(self, timeout: float | None) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.wait(), timeout)

    async def _connect(self) -> AsyncClient:
        try:
            return await AsyncClient.connect(self._address)
        except ValueError as error:
            raise Unreachable(str(error)) from error

    def _report_bug(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()):
            self._log.error("GPU sharing: the supervisor failed", exc_info=error)

    # --- starting one

    async def _start(self) -> None:
        """Start a coordinator, once for all who ask at a time. Raises Unreachable, also while backing off."""
        if self._starting is None or self._starting.done():
            if asyncio.get_running_loop().time() < self._retry_at:
                raise Unreachable(self._failure)
            self._starting = asyncio.get_running_loop().create_task(self._spawn(), name="gpushare-start")
        # A caller that gives up (its front end went away) must not cancel it for the others.
        await asyncio.shield(self._starting)
        if self._retry_at:
            raise Unreachable(self._failure)

    async def _spawn(self) -> None:
        try:
            await ensure_coordinator_async(self._address, self._argv(), START_TIMEOUT_SECONDS)
        except (CoordinatorError, OSError, ValueError) as error:
            self._backoff = min(MAX_BACKOFF_SECONDS, max(1.0, 2 * self._backoff))
            self._retry_at = asyncio.get_running_loop().time() + self._backoff
            self._failure = str(error)
            self._log.error("GPU sharing: %s; next attempt in %g s", error, self._backoff)
        else:
            self._retry_at = 0.0

    # --- telling others

    def _publish(self, status: dict[str, Any]) -> None:
        before, self.status = self.status, status
        self._changed(before, status)
        essence = _without_clock_fields(status)
        if essence != self._last_content:
            self._last_content = essence
            self._send_frame(_snapshot_frame(status))

    def _publish_unavailable(self, reason: str, message: str) -> None:
        self.status = None
        if message != self._last_content:
            self._last_content = message
            self._send_frame(json.dumps({"type": "unavailable", "reason": reason, "message": message}))

    def _reset(self) -> None:
        self.status = self._last_content = None
        self.frame = ""
        self._had_clients = False
        self._address = self._configured

    def _send_frame(self, frame: str) -> None:
        self.frame = frame
        for watcher in self._listeners:
            watcher.has_new_frame.set()


def _snapshot_frame(status: dict[str, Any]) -> str:
    return json.dumps({"type": "snapshot", "status": status})


def _without_clock_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_clock_fields(item) for key, item in value.items() if key not in _CLOCK_FIELDS}
    if isinstance(value, list):
        return [_without_clock_fields(item) for item in value]
    return value
