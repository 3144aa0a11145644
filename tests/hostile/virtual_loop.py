"""Event loop in virtual time, which advances only when nothing is ready."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop with real sockets that advances its time instead of waiting; `bugs` has exceptions of callbacks."""

    def __init__(self) -> None:
        self._now = 1000.0
        self.bugs: list[str] = []
        super().__init__(_NonBlockingSelector(self))
        self.set_exception_handler(lambda _, context: self.bugs.append(repr(context)))

    def time(self) -> float:
        return self._now

    def wait(self, seconds: float) -> None:
        self._now += seconds


class _NonBlockingSelector(selectors.DefaultSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        found = super().select(0)
        if not found and timeout:
            self._loop.wait(timeout)
        return found
