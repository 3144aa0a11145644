"""Long work on the event loop in chunks, between which the loop handles messages and the ends of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ITEMS = 16  # clients or processes in a chunk
MAX_SECONDS = 0.001  # time after which a chunk starts no further item

_T = TypeVar("_T")


class ChunkedWork:
    """Runner of `steps`: the chunk up to the first `yield` at once, and each further chunk from the event loop.

    `on_seconds` gets the seconds of each further chunk.
    """

    def __init__(self, steps: Iterator[None], on_seconds: Callable[[float], None] = lambda _: None) -> None:
        self._steps = steps
        self._on_seconds = on_seconds
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._run()

    @property
    def is_finished(self) -> bool:
        return self._timer is None

    def cancel(self) -> None:
        if self._timer:
            self._timer.cancel()

    def _run(self) -> None:
        self._timer = None
        if not next(self._steps, True):
            self._timer = self._loop.call_later(0, self._run_later)  # after the messages that have arrived

    def _run_later(self) -> None:
        started_at = self._loop.time()
        self._run()
        self._on_seconds(self._loop.time() - started_at)


def in_chunks(items: Iterable[_T], process: Callable[[_T], None]) -> Iterator[None]:
    """Call `process` with each item: up to `MAX_ITEMS` items at once, more items in chunks.

    Between two chunks any state may change.
    """
    present, loop = list(items), asyncio.get_running_loop()
    is_chunked = len(present) > MAX_ITEMS
    until, left = loop.time(), 0
    for item in present:
        if is_chunked and (not left or loop.time() > until):
            yield
            until, left = loop.time() + MAX_SECONDS, MAX_ITEMS
        process(item)
        left -= 1
    if is_chunked:
        yield
