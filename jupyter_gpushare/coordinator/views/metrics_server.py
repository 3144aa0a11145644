"""Server of `/metrics` for Prometheus on a port or a Unix socket, with threads apart from the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from ...metrics import prometheus
from ...wire.address import MetricsAddress
from ..transport.listen_sockets import listen
from .snapshot_visibility import SnapshotEncoder

TIMEOUT_SECONDS = 5.0  # without a byte of a request or of its reply
MAX_THREADS = 20  # of the coordinator, with one thread for each scrape
CACHE_SECONDS = 1.0  # maximum age of a snapshot
_SWITCH_INTERVAL_SECONDS = 0.001  # after which the thread of a scrape releases the interpreter to the event loop


class MetricsServer(Collector):
    """Server of the metrics of snapshots. `request_snapshot` runs on the event loop, and passes one to its callback."""

    def __init__(
        self, where: MetricsAddress, request_snapshot: Callable[[None, Callable[[SnapshotEncoder], None]], None]
    ) -> None:
        """Start to serve. Raises OSError if the address cannot be used."""
        self._request_snapshot = request_snapshot
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        # Threads share a snapshot, and no thread changes its content.
        self._snapshot, self._taken_at = SnapshotEncoder({}, {}), float("-inf")
        self._path = where.path
        registry = CollectorRegistry()
        registry.register(self)
        self._server = _Server(_open_listener(where))
        self._server.set_app(make_wsgi_app(registry))
        sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        threading.Thread(target=self._server.shutdown, daemon=True).start()  # a thread, because shutdown takes 0.5 s
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if time.monotonic() - self._taken_at >= CACHE_SECONDS:
                views: Future[SnapshotEncoder] = Future()
                self._loop.call_soon_threadsafe(self._request_snapshot, None, views.set_result)
                self._snapshot, self._taken_at = views.result(TIMEOUT_SECONDS), time.monotonic()
        return prometheus.snapshot_metrics(self._snapshot.status)


class _Server(ThreadingWSGIServer):
    def __init__(self, listener: socket.socket) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = "gpushare", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return super().get_request()[0], ("", 0)  # the base class expects an Internet address, even on a Unix socket

    def process_request(self, request: Any, client_address: Any) -> None:
        if threading.active_count() > MAX_THREADS:
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, because the peer has gone or was too slow."""


class _Handler(WSGIRequestHandler):
    timeout = TIMEOUT_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because scrapes are frequent."""


def _open_listener(where: MetricsAddress) -> socket.socket:
    if not where.path:
        family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
        return socket.create_server((where.host, where.port), family=family)
    if os.path.lexists(where.path) and not stat.S_ISSOCK(os.lstat(where.path).st_mode):
        raise FileExistsError(f"{where.path} exists and is not a socket: choose another address for the metrics")
    return listen(where.path, 0o660)
