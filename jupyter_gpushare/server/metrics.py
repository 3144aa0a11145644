"""Metrics of the last snapshots in `/metrics` of the Jupyter server."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..metrics import prometheus

Source = Callable[[], dict[str, dict[str, Any]]]
Answers = Callable[[], dict[str, bool]]


class SnapshotCollector(Collector):
    """Collector of metrics from the snapshots by node that `source` returns at each scrape.

    `answers` returns whether each node answers.
    """

    def __init__(self, source: Source, answers: Answers = dict) -> None:
        self._source = source
        self._answers = answers

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, so that the registration does not call `source`."""
        return []

    def collect(self) -> Iterable[Metric]:
        return prometheus.server_metrics(self._source(), self._answers())


def register(source: Source, answers: Answers) -> Callable[[], None]:
    """Show `source` and `answers` in `/metrics` until the returned function is called."""
    collector = SnapshotCollector(source, answers)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)
