"""Watch on the process that registered a client, because the client ends with that process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from ..transport.connection import Connection
from .client_runtime import ClientRuntime

log = logging.getLogger(__name__)


class ProcessExitWatcher:
    """Watcher of processes that registered clients, which calls `on_client_ended` once for each client."""

    def __init__(self, on_client_ended: Callable[[ClientRuntime], None]) -> None:
        self._on_client_ended = on_client_ended
        self._loop = asyncio.get_running_loop()
        self._watched: dict[ClientRuntime, int] = {}  # pidfds

    def watch(self, runtime: ClientRuntime, connection: Connection) -> None:
        """Watch the process at the other end of the connection, unless a process of the client is watched already."""
        if runtime in self._watched:
            return
        try:
            watched = connection.open_pidfd()
        except OSError as error:  # ended, in another namespace, or an old Linux; the client ends by its removal grace
            log.info("cannot watch process %d of client %s: %s", connection.pid, runtime.client_id, error)
            return
        self._watched[runtime] = watched
        self._loop.add_reader(watched, self._on_exit, runtime)

    def remove(self, runtime: ClientRuntime) -> None:
        watched = self._watched.pop(runtime, None)
        if watched is not None:
            self._loop.remove_reader(watched)
            os.close(watched)

    def close(self) -> None:
        for runtime in list(self._watched):
            self.remove(runtime)

    def _on_exit(self, runtime: ClientRuntime) -> None:
        self.remove(runtime)
        self._on_client_ended(runtime)
