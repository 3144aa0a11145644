"""Long work on the event loop, a slice at a time, so that messages and the ends of turns wait for one slice at most."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

AT_A_TIME = 16  # clients or processes in a slice at most
LONGEST = 0.001  # seconds after which a slice begins no other one

_T = TypeVar("_T")


class Slices:
    """Run `steps` up to its first `yield` at once, and each further slice after the event loop has served its peers.

    `took` gets the seconds of each further slice.
    """

    def __init__(self, steps: Iterator[None], took: Callable[[float], None] = lambda _: None) -> None:
        self._steps = steps
        self._took = took
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle | None = None
        self._run()

    @property
    def over(self) -> bool:
        return self._next is None

    def cancel(self) -> None:
        if self._next:
            self._next.cancel()

    def _run(self) -> None:
        self._next = None
        if not next(self._steps, True):
            self._next = self._loop.call_later(0, self._run_later)  # behind what is there to be read by now

    def _run_later(self) -> None:
        began = self._loop.time()
        self._run()
        self._took(self._loop.time() - began)


def each(items: Iterable[_T], look: Callable[[_T], None]) -> Iterator[None]:
    """Call `look` with each of `items`: with up to `AT_A_TIME` at once, with more of them in slices.

    Between two slices anything may change.
    """
    found, loop = list(items), asyncio.get_running_loop()
    sliced = len(found) > AT_A_TIME
    until, left = loop.time(), 0
    for item in found:
        if sliced and (not left or loop.time() > until):
            yield
            until, left = loop.time() + LONGEST, AT_A_TIME
        look(item)
        left -= 1
    if sliced:
        yield
