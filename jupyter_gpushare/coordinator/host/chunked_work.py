"""Long work on the event loop, a slice at a time, so that messages and the ends of turns wait for one slice at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

MAX_ITEMS = 16  # clients or processes in a slice at most
MAX_SECONDS = 0.001  # seconds after which a slice begins no other one

_T = TypeVar("_T")


class ChunkedWork:
    """Run `steps` up to its first `yield` at once, and each further slice after the event loop has served its peers.

    `on_seconds` gets the seconds of each further slice.
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
            self._timer = self._loop.call_later(0, self._run_later)  # behind what is there to be read by now

    def _run_later(self) -> None:
        began = self._loop.time()
        self._run()
        self._on_seconds(self._loop.time() - began)


def in_chunks(items: Iterable[_T], process: Callable[[_T], None]) -> Iterator[None]:
    """Call `look` with each of `items`: with up to `AT_A_TIME` at once, with more of them in slices.

    Between two slices anything may change.
    """
    found, loop = list(items), asyncio.get_running_loop()
    sliced = len(found) > MAX_ITEMS
    until, left = loop.time(), 0
    for item in found:
        if sliced and (not left or loop.time() > until):
            yield
            until, left = loop.time() + MAX_SECONDS, MAX_ITEMS
        process(item)
        left -= 1
    if sliced:
        yield
