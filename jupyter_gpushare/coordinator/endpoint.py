"""The coordinator's own `/metrics`, for Prometheus: the least of HTTP that a scrape needs, on the event loop.

Whoever asks too slowly, or with too many others, is hung up on; what is told is made at most once a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from .. import families
from ..wire.address import MetricsAddress

TIMEOUT = 5.0  # seconds for a request, and for taking the answer
MOST = 16  # scrapes at a time
FRESH = 1.0  # seconds for which an answer holds

_LONGEST = 8192  # bytes of a request
_TYPES = {200: CONTENT_TYPE_LATEST}
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


class Endpoint:
    """`take` returns a snapshot with everybody's usage."""

    def __init__(self, take: Callable[[], Mapping[str, Any]]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Snapshot(take))
        self._server: asyncio.AbstractServer | None = None
        self._path = ""
        self._asking = 0
        self._told = (b"", float("-inf"))

    async def start(self, where: MetricsAddress) -> None:
        """Raises OSError when it cannot be there."""
        if not where.path:
            self._server = await asyncio.start_server(self._answer, where.host, where.port, limit=_LONGEST)
            return
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(where.path).st_mode):
                raise FileExistsError(f"{where.path} exists and is no socket")
            os.unlink(where.path)
        mask = os.umask(0o117)  # for its user and its group
        try:
            self._server = await asyncio.start_unix_server(self._answer, where.path, limit=_LONGEST)
        finally:
            os.umask(mask)
        self._path = where.path

    def close(self) -> None:
        if self._server:
            self._server.close()
        if self._path:
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._asking += 1
        try:
            if self._asking <= MOST:
                writer.write(self._page(await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)))
                await asyncio.wait_for(writer.drain(), TIMEOUT)
        except (OSError, EOFError, asyncio.TimeoutError, asyncio.LimitOverrunError):
            pass  # who asks in no way that we know
        finally:
            self._asking -= 1
            writer.close()

    def _page(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not rest:
            status, body = 400, b"This is no request.\n"
        elif method not in (b"GET", b"HEAD"):
            status, body = 405, b"Only GET is allowed here.\n"
        elif path != b"/metrics":
            status, body = 404, b"There is only /metrics here.\n"
        else:
            status, body = 200, self._metrics()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {_TYPES.get(status, 'text/plain')}\r\n"
            f"Content-Length: {len(body)}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == b"HEAD" else body)

    def _metrics(self) -> bytes:
        now = asyncio.get_running_loop().time()
        if now - self._told[1] >= FRESH:
            self._told = (generate_latest(self._registry), now)
        return self._told[0]


class _Snapshot(Collector):
    def __init__(self, take: Callable[[], Mapping[str, Any]]) -> None:
        self._take = take

    def collect(self) -> Iterator[Metric]:
        return families.of_snapshot(self._take())
