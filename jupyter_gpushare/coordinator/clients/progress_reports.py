"""What clients have done, told to the scheduler about once a second: it finds out by it who gets on with whom."""

from __future__ import annotations

from ...core.interface import events as ev
from .client_runtime import ClientRuntime


class ProgressReports:
    """Knows what was told last, so that nothing is told twice."""

    def __init__(self) -> None:
        self._reported: dict[str, ev.Progress] = {}

    def progress_event(self, runtime: ClientRuntime) -> ev.Progress | None:
        """Of a client that has run since, or runs now."""
        measures = runtime.counters
        at = measures.counted_ns / 1e9 if measures.counted_ns else None
        news = ev.Progress(runtime.client_id, measures.launches, measures.blocks, measures.gpu_ns / 1e9, at)
        if news == self._reported.get(runtime.client_id) or not (measures.launches or measures.gpu_ns):
            return None
        self._reported[runtime.client_id] = news
        return news

    def remove(self, client: str) -> None:
        self._reported.pop(client, None)
