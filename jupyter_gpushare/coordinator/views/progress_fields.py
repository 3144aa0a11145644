"""Fields of a client in the snapshot about its progress: training steps, or the progress that the program shows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...core.state.model import Client
from ...units import format_duration
from ...wire import page as pages
from ..clients.client_runtime import ClientRuntime
from ..host.printable_text import sanitize

MAX_COUNT = 1 << 53  # upper bound of parts, because a process may write any value
_MIN_PACE_SECONDS = 1.0  # of work, from which its pace is known


class Progress(NamedTuple):
    """Progress of the work at hand: `done` of `total` parts, and its pace. A value of None is unknown."""

    done: int
    total: int | None
    per_minute: float | None
    text: str

    @property
    def seconds_left(self) -> float | None:
        if self.total is None or not self.per_minute:
            return None
        return (self.total - self.done) / self.per_minute * 60

    def as_json(self) -> dict[str, Any]:
        left = self.seconds_left
        return {
            "done": self.done,
            "total": self.total,
            "text": self.text,
            "per_minute": None if self.per_minute is None else round(self.per_minute, 3),
            "seconds_left": None if left is None else round(left, 3),
        }

    def __str__(self) -> str:
        """Return the progress for users: "epoch 2: 3 of 10 · 30 a minute · about 14 s left"."""
        words = [f"{self.done} of {self.total}" if self.total is not None else f"{self.done} done"]
        if self.per_minute is not None and self.per_minute >= 0.05:
            words.append(f"{self.per_minute:.{0 if self.per_minute >= 10 else 1}f} a minute")
        if self.seconds_left:
            words.append(f"about {format_duration(math.ceil(self.seconds_left))} left")
        return (f"{self.text}: " if self.text else "") + " · ".join(words)


@dataclass
class _StepCount:
    """Training steps of a client in one cell, or in the life of a program."""

    work: float
    before: int  # steps that a process had marked before the work
    first: int  # steps at the first sample, from which the pace counts
    began_at: float
    steps: int
    changed_at: float


class StepCounts:
    """Training steps that each client has marked in its work at hand, from samples about once a second."""

    def __init__(self) -> None:
        self._counts: dict[str, _StepCount] = {}

    def sample(self, client: Client, runtime: ClientRuntime, now: float) -> None:
        """Take a sample of the steps of the client's processes; several processes mark the same steps.

        A client without processes keeps its count, because a process that moves to another device says hello again.
        """
        leader = max(runtime.processes.values(), key=lambda handle: handle.training_steps, default=None)
        work = _work_began_at(client, runtime)
        count = self._counts.get(client.id)
        if work is None:
            self._counts.pop(client.id, None)
        elif leader is None:
            return
        elif count is None or count.work != work or leader.training_steps < count.steps:
            steps = leader.training_steps
            self._counts[client.id] = _StepCount(work, min(leader.steps_before, steps), steps, now, steps, now)
        elif leader.training_steps != count.steps:
            count.steps, count.changed_at = leader.training_steps, now

    def remove(self, client: str) -> None:
        self._counts.pop(client, None)

    def of_client(self, client: Client, runtime: ClientRuntime) -> Progress | None:
        count = self._counts.get(client.id)
        if count is None or count.steps == count.before or count.work != _work_began_at(client, runtime):
            return None
        pace = _per_minute(count.steps - count.first, count.changed_at - count.began_at)
        return Progress(min(count.steps - count.before, MAX_COUNT), None, pace, "training steps")


def progress_fields(client: Client, runtime: ClientRuntime, steps: StepCounts) -> dict[str, Any]:
    """Return the fields `progress` and `progress_text` of a client in the snapshot.

    A progress that the program shows by `jupyter_gpushare.progress` comes before its count of training steps.
    """
    progress = _shown_progress(client, runtime) or steps.of_client(client, runtime)
    return {
        "progress": None if progress is None else progress.as_json(),
        "progress_text": "" if progress is None else str(progress),
    }


def _work_began_at(client: Client, runtime: ClientRuntime) -> float | None:
    """Return when the work at hand began: a cell, or the whole program; None: a kernel without a cell."""
    if client.cells:
        return client.cells_since
    return None if runtime.kernels else -math.inf


def _shown_progress(client: Client, runtime: ClientRuntime) -> Progress | None:
    """Return the progress of the client's first process that shows one; a kernel ends its progress with its cell."""
    if _work_began_at(client, runtime) is None:
        return None
    found = (handle.page.read_progress() for handle in runtime.processes.values())
    return next((_from_page(one) for one in found if one is not None), None)


def _from_page(found: pages.Progress) -> Progress:
    done = min(found.done, MAX_COUNT)
    total = min(found.total, MAX_COUNT) if found.total >= done else 0
    pace = _per_minute(done - found.first, (found.changed_ns - found.began_ns) / 1e9)
    return Progress(done, total or None, pace, sanitize(found.text).strip())


def _per_minute(done: int, seconds: float) -> float | None:
    return 60 * done / seconds if done > 0 and seconds >= _MIN_PACE_SECONDS else None
