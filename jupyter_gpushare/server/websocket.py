"""WebSocket `/gpushare/api/events`, which sends the present snapshot, and later the changed snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from jupyter_core.utils import ensure_async
from jupyter_server.auth.decorator import ws_authenticated
from tornado.websocket import WebSocketClosedError, WebSocketHandler

from . import errors
from .handlers import AUTH_RESOURCE, GpuShareHandler

MIN_FRAME_INTERVAL_SECONDS = 0.1
GOING_AWAY = 1001  # close code of RFC 6455


class EventsHandler(GpuShareHandler, WebSocketHandler):
    """WebSocket that sends text frames and ignores received frames.

    The WebSocket sends no pings, because a hub's proxy counts each byte as activity and would never cull the server.
    """

    _send_task: asyncio.Task[None] | None = None

    @ws_authenticated
    async def get(self, *args: Any, **kwargs: Any) -> None:
        user = self.current_user
        if not await ensure_async(self.authorizer.is_authorized(self, user, "execute", AUTH_RESOURCE)):
            raise errors.ApiError(403, "forbidden", f"The user is not authorized to execute on {AUTH_RESOURCE}.")
        if self.request.headers.get("Upgrade", "").lower() != "websocket":
            raise errors.ApiError(400, "invalid", "This address is a WebSocket; use /gpushare/api/status for requests.")
        await WebSocketHandler.get(self, *args, **kwargs)

    def open(self, *args: str, **kwargs: str) -> None:
        stream = self.ws_connection and self.ws_connection.stream
        if stream and not stream.closed():
            # The connection of a page on a machine that has gone ends within hours, without a byte through a proxy.
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._send_task = asyncio.get_running_loop().create_task(self._send_frames(), name="gpushare-events")

    def on_message(self, message: str | bytes) -> None:
        pass

    def on_close(self) -> None:
        if self._send_task:
            self._send_task.cancel()

    async def _send_frames(self) -> None:
        try:
            with self.supervisor.watch() as listener, contextlib.suppress(WebSocketClosedError):
                frame = await self.supervisor.current()
                while True:
                    if frame:
                        # The call waits for the socket, so a slow reader skips frames and no frames accumulate.
                        await self.write_message(frame)
                        await asyncio.sleep(MIN_FRAME_INTERVAL_SECONDS)
                    await listener.has_new_frame.wait()
                    listener.has_new_frame.clear()
                    frame = self.supervisor.frame
        finally:
            self.close(GOING_AWAY, "The server stops.")
