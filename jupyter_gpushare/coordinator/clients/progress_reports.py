"""Progress of clients, from which the scheduler finds out which clients can be colocated."""

from __future__ import annotations

from ...core.interface import events as ev
from .client_runtime import ClientRuntime


class ProgressReports:
    """Last reported progress of each client, so that no progress is reported twice."""

    def __init__(self) -> None:
        self._reported: dict[str, ev.Progress] = {}

    def progress_event(self, runtime: ClientRuntime) -> ev.Progress | None:
        """Return the progress of a client, or None if the client has not run since the last report."""
        counters = runtime.counters
        at = counters.counted_ns / 1e9 if counters.counted_ns else None
        progress = ev.Progress(runtime.client_id, counters.launches, counters.blocks, counters.gpu_ns / 1e9, at)
        if progress == self._reported.get(runtime.client_id) or not (counters.launches or counters.gpu_ns):
            return None
        self._reported[runtime.client_id] = progress
        return progress

    def remove(self, client: str) -> None:
        self._reported.pop(client, None)
