"""Runner of rounds of tasks, once a second and in chunks. After an exception of a task, the later tasks run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from ..host.chunked_work import ChunkedWork, in_chunks
from ..transport.rate_limits import WindowCounter

INTERVAL_SECONDS = 1.0  # between the starts of two rounds
REPEAT_LOG_SECONDS = 3600.0  # until a lasting fault is logged again

_Key = TypeVar("_Key")
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class PeriodicTasks:
    """Rounds of tasks, from the next iteration of the event loop until `stop`.

    `run_round` runs all tasks of a round by `run` and `run_each`; its argument is the time when the round starts.
    At each of its `yield`s the event loop handles messages, because messages about turns come first. `describe_state`
    returns the lines that are logged with the exception of a task.
    """

    def __init__(self, run_round: Callable[[float], Iterator[None]], describe_state: Callable[[], list[str]]) -> None:
        self._run_round = run_round
        self._describe_state = describe_state
        self._loop = asyncio.get_running_loop()
        self._failures = WindowCounter(REPEAT_LOG_SECONDS, self._loop.time)
        self._timer: asyncio.Handle = self._loop.call_later(0, self._start_round)
        self._work: ChunkedWork | None = None

    def stop(self) -> None:
        self._timer.cancel()
        if self._work:
            self._work.cancel()

    def run(self, name: str, task: Callable[..., object], *arguments: object) -> None:
        """Run a task, and log its exception, so that a bug in one task leaves the other tasks running."""
        try:
            task(*arguments)
        except Exception:
            if self._failures.count(name) == 1:
                log.exception("bug: %s; event log:\n%s", name, "\n".join(self._describe_state()))

    def run_each(self, items: Mapping[_Key, _T], task: Callable[[_T], None]) -> Iterator[None]:
        """Run a task for each item that is present now and still present when its turn in the chunks comes."""

        def run_if_present(item: tuple[_Key, _T]) -> None:
            if items.get(item[0]) is item[1]:
                self.run(str(item[0]), task, item[1])

        yield from in_chunks(items.items(), run_if_present)
        yield

    def _start_round(self) -> None:
        self._work = ChunkedWork(self._round(self._loop.time()))

    def _round(self, now: float) -> Iterator[None]:
        yield from self._run_round(now)
        self._timer = self._loop.call_at(now + INTERVAL_SECONDS, self._start_round)
