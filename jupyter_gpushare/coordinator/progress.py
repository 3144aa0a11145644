"""What clients have done, told to the scheduler about once a second: it finds out by it who gets on with whom."""

from __future__ import annotations

from ..core import events as ev
from .members import Member


class ProgressReports:
    """Knows what was told last, so that nothing is told twice."""

    def __init__(self) -> None:
        self._told: dict[str, ev.Progress] = {}

    def news(self, member: Member) -> ev.Progress | None:
        """Of a client that has run since, or runs now."""
        measures = member.measures
        at = measures.counted_ns / 1e9 if measures.counted_ns else None
        news = ev.Progress(member.client, measures.launches, measures.blocks, measures.gpu_ns / 1e9, at)
        if news == self._told.get(member.client) or not (measures.launches or measures.gpu_ns):
            return None
        self._told[member.client] = news
        return news

    def forget(self, client: str) -> None:
        self._told.pop(client, None)
