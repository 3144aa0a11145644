"""Supervisor, which keeps a coordinator running while clients need one, and sends its snapshots to listeners.

A request may start a coordinator.
The supervisor starts another one after the loss of a coordinator on which kernels of this server, or clients of the
last snapshot, depend.
Without clients, the supervisor closes its subscription, which would keep the coordinator from ending by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from time import monotonic
from typing import Any

import msgspec

from ..wire import messages
from ..wire.client import AsyncClient, CoordinatorError, Unreachable, ensure_coordinator_async
from . import liveness
from .snapshot_times import counted_on, without_clock_fields

# Interval of attempts to connect while listeners wait; an attempt on a Unix socket costs microseconds.
POLL_SECONDS = 0.5
# Delay between the loss of a coordinator and the start of another one, so that a restart on purpose comes first. The
# delay is also the interval of attempts if the socket accepts no connection.
RESPAWN_DELAY_SECONDS = 0.25
# After a failed start, the next attempt follows after 1, 2, 4 ... 30 seconds.
MAX_BACKOFF_SECONDS = 30.0
START_TIMEOUT_SECONDS = 5.0
_NOT_RUNNING_REASON = "not_running"
NOT_RUNNING = "No coordinator is running; the first shared kernel starts one."


async def _do_nothing() -> None:
    pass


SnapshotListener = Callable[[dict[str, Any] | None, dict[str, Any]], None]


class FrameListener:
    """Listener to changes of `Supervisor.frame`, each of which sets `has_new_frame`."""

    def __init__(self, task: asyncio.Task[Any] | None) -> None:
        self.has_new_frame = asyncio.Event()
        self.task = task


class Supervisor:
    """Supervisor of the coordinator.

    `status` is the last snapshot of this host, or None while no coordinator answers. `frame` is the text for
    WebSockets.
    """

    def __init__(
        self,
        address: str,
        argv: Callable[[], Sequence[str]],
        needed: Callable[[], bool],
        log: logging.Logger,
        listeners: Sequence[SnapshotListener] = (),
        merged: Callable[[dict[str, Any] | None], dict[str, Any] | None] = lambda status: status,
        refresh: Callable[[], Awaitable[None]] = _do_nothing,
    ) -> None:
        """Create a supervisor, which does nothing before `begin`.

        `address` is the configured socket, or "" for the default.
        `argv` returns the command that starts a coordinator.
        `needed` returns true if this server has kernels that need a coordinator.
        `listeners` get each snapshot, with the snapshot before, which is None for the first one of a coordinator.
        `merged` returns what frames show: the snapshot with those of the nodes, or None for no snapshot at all.
        `refresh` gets new snapshots of the nodes, for a new listener.
        """
        self.status: dict[str, Any] | None = None
        self._status_at = 0.0  # in seconds of `monotonic`
        self.frame = ""
        self._address = self._configured = address
        self._argv = argv
        self._needed = needed
        self._log = log
        self._snapshot_listeners = listeners
        self._failed_listeners: set[SnapshotListener] = set()  # at the present coordinator
        self._merged = merged
        self._refresh = refresh
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._listeners: set[FrameListener] = set()
        self._outage: dict[str, Any] = {}  # message about the lack of a coordinator; empty while there is one
        self._last_content: Any = None
        self._client: AsyncClient | None = None
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._has_unsubscribed = False
        self._had_clients = False
        self._starting: asyncio.Task[None] | None = None
        self._backoff = 0.0
        self._retry_at = 0.0
        self._failure = ""

    # --- public methods

    @property
    def is_watched(self) -> bool:
        """Return whether a page shows the state."""
        return bool(self._listeners)

    @property
    def address(self) -> str:
        """Address of the present coordinator, or the address at which the supervisor will connect."""
        return self._address

    def begin(self) -> None:
        """Connect to a coordinator, and supervise it from now on."""
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="gpushare-supervisor")
            self._task.add_done_callback(self._report_bug)
        self._wake.set()

    def kernel_started(self) -> None:
        """Connect to the coordinator that a kernel of this server may have started.

        jupyter_server lists the kernel as running a little later, so the supervisor tries twice.
        """
        self.begin()
        asyncio.get_running_loop().call_later(1.0, self._wake.set)

    async def request(self, message: msgspec.Struct, start: bool = True) -> Any:
        """Send a request of `wire.messages` over a connection of its own, and return the result.

        Raise Unreachable if no coordinator answers and, with `start`, a new one cannot be started.
        Raise CoordinatorError if the coordinator refuses.
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
        """Provide a listener to changes. The end of the server cancels the calling task."""
        listener = FrameListener(asyncio.current_task())
        self._listeners.add(listener)
        self.begin()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            if self._client and not self._is_used():
                self._has_unsubscribed = True
                task = asyncio.get_running_loop().create_task(self._client.close())
                self._closing_tasks.add(task)
                task.add_done_callback(self._closing_tasks.discard)

    async def current(self) -> str:
        """Return a frame for a new listener, or "" before the first snapshot.

        The frame comes from a new snapshot, because the times in the last snapshot may be old.
        """
        await self._refresh()
        if self._client is not None and self.status is not None:
            with contextlib.suppress(CoordinatorError):
                self._publish(await self._client.request(messages.Status()))
        message = self._message()
        return json.dumps(message) if message else ""

    async def close(self) -> None:
        """Stop all tasks in this process. The coordinator continues, because other clients may need it."""
        tasks = [self._task, self._starting, *self._closing_tasks, *(listener.task for listener in self._listeners)]
        running = {task for task in tasks if task is not None and not task.done()}
        while running:
            for task in running:
                task.cancel()
            # Before Python 3.12, `asyncio.wait_for` loses a cancellation that comes with its result: hence the loop.
            _, running = await asyncio.wait(running, timeout=0.1)
        self.status = None

    # --- the subscription

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
        """Publish snapshots until no listener or client needs them. Raise CoordinatorError at the coordinator's end."""
        self._client = client = await self._connect()
        self._has_unsubscribed = False
        on_snapshot = functools.partial(self._on_snapshot, client)
        liveness_task = asyncio.get_running_loop().create_task(
            liveness.watch_liveness(client, self._on_hang, on_snapshot), name="gpushare-liveness"
        )
        liveness_task.add_done_callback(self._report_bug)
        try:
            async for status in client.subscribe(liveness.HANG_TIMEOUT_SECONDS):
                on_snapshot(status)
                if not self._is_used():
                    return
        except Unreachable:
            if not self._has_unsubscribed:
                raise
        finally:
            self._client = None
            liveness_task.cancel()
            await client.close()

    def _on_snapshot(self, client: AsyncClient, status: dict[str, Any]) -> None:
        if self.status is None:
            self._address = client.path
            self._backoff = self._retry_at = 0.0
            self._failed_listeners = set()
        self._publish(status)

    def _on_hang(self, message: str) -> None:
        """Report that the coordinator hangs, without starting another one.

        A coordinator that hangs keeps the socket, and can continue later.
        """
        self._log.warning("lost contact with the GPU sharing service: %s", message)
        if self.status is not None:
            self._had_clients = bool(self.status.get("clients"))
        self._publish_unavailable("unreachable", message)

    def _is_used(self) -> bool:
        return bool(self._listeners or (self.status and self.status.get("clients")) or self._needed())

    async def _on_disconnect(self, error: CoordinatorError) -> None:
        is_new_loss = self.status is not None
        if self.status is not None:
            self._had_clients = bool(self.status.get("clients"))
        if not (self._had_clients or self._needed()):
            self._address = self._configured
            self._publish_unavailable(_NOT_RUNNING_REASON, f"{NOT_RUNNING} ({error})")
            await self._wait_for_wakeup(POLL_SECONDS if self._listeners else None)
            return
        # The reason for a failed start is more useful than the message that no coordinator answers.
        self._publish_unavailable(error.reason, self._failure if self._retry_at else str(error))
        if is_new_loss:
            self._log.warning("starting another coordinator for GPU sharing: %s", error)
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
            self._log.error("failed in the supervisor of GPU sharing", exc_info=error)

    # --- starts of a coordinator

    async def _start(self) -> None:
        """Start a coordinator, once for all simultaneous callers. Raise Unreachable, also between two attempts."""
        if self._starting is None or self._starting.done():
            if asyncio.get_running_loop().time() < self._retry_at:
                raise Unreachable(self._failure)
            self._starting = asyncio.get_running_loop().create_task(self._spawn(), name="gpushare-start")
        # The cancellation of one caller must not cancel the start for the other callers.
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
            self._log.error(
                "could not start a coordinator for GPU sharing, next attempt in %g s: %s", self._backoff, error
            )
        else:
            self._retry_at = 0.0

    # --- frames for listeners

    def send_changes(self) -> None:
        """Send a frame to all listeners if what frames show has changed."""
        message = self._message()
        content = without_clock_fields(message)
        if message and content != self._last_content:
            self._last_content = content
            self.frame = json.dumps(message)
            for listener in self._listeners:
                listener.has_new_frame.set()

    def _message(self) -> dict[str, Any]:
        """Return the message of the present state; empty before the first answer.

        Beside the snapshots of nodes, a coordinator of this host that fails has an entry among the nodes, without a
        name.
        """
        status = counted_on(self.status, monotonic() - self._status_at)
        shown = self._merged(status) if status is not None or self._outage else None
        if shown is None:
            return self._outage
        if self._outage and self._outage["reason"] != _NOT_RUNNING_REASON:
            shown["nodes"] = [{"name": "", "message": self._outage["message"]}, *shown["nodes"]]
        return {"type": "snapshot", "status": shown}

    def _publish(self, status: dict[str, Any]) -> None:
        before, self.status, self._status_at = self.status, status, monotonic()
        self._outage = {}
        for listener in self._snapshot_listeners:
            self._call(listener, before, status)
        self.send_changes()

    def _call(self, listener: SnapshotListener, before: dict[str, Any] | None, status: dict[str, Any]) -> None:
        """Call a listener, and log its first failure at a coordinator, which may have another version."""
        try:
            listener(before, status)
        except Exception:
            if listener not in self._failed_listeners:
                self._failed_listeners.add(listener)
                self._log.exception("failed to use a snapshot of GPU sharing")

    def _publish_unavailable(self, reason: str, message: str) -> None:
        self.status = None
        self._outage = {"type": "unavailable", "reason": reason, "message": message}
        self.send_changes()

    def _reset(self) -> None:
        self.status = self._last_content = None
        self._outage, self.frame = {}, ""
        self._had_clients = False
        self._address = self._configured
