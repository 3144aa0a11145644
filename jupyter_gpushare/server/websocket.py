"""The WebSocket `/gpushare/api/events`: a snapshot at once, then one after each change."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from . import errors
from .handlers import AUTH_RESOURCE, GpuShareHandler

# At most ten frames a second.
MIN_FRAME_INTERVAL_SECONDS = 0.1
GOING_AWAY = 1001


class EventsHandler(GpuShareHandler, WebSocketHandler):
    """Sends text frames, ignores what it receives.

    There are no pings: a hub's proxy takes any byte for activity, and an idle notebook would never be culled.
    """

    _send_task: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        user = self.current_user
        if not await ensure_async(self.authorizer.is_authorized(self, user, "execute", AUTH_RESOURCE)):
            raise errors.Refused(403, "forbidden", f"User is not authorized to execute on {AUTH_RESOURCE}.")
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.Refused(400, "invalid", "This address is a WebSocket; /gpushare/api/status is not.")
        await WebSocketHandler.get(self, *args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        self._send_task = asyncio.get_running_loop().create_task(self._send_frames(), name="gpushare-events")

    def on_message(self, message: str | bytes) -> None:
        pass

    def on_close(self) -> None:
        if self._send_task:
            self._send_task.cancel()

    async def _send_frames(self) -> None:
        try:
            with self.supervisor.watch() as watcher, contextlib.suppress(WebSocketClosedError):
                frame = await self.supervisor.current()
                while True:
                    if frame:
                        # Returns when the system has the frame: a slow reader skips frames, none pile up here.
                        await self.write_message(frame)
                        await asyncio.sleep(MIN_FRAME_INTERVAL_SECONDS)
                    await watcher.has_new_frame.wait()
                    watcher.has_new_frame.clear()
                    frame = self.supervisor.frame
        finally:
            self.close(GOING_AWAY, "the server stops")
