"""What `/metrics` of the Jupyter server tells of the last snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from ..metrics import prometheus

Source = Callable[[], "dict[str, Any] | None"]


class SnapshotCollector(Collector):
    """Families over the snapshot that `source` returns when they are read."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering does not read the source."""
        return []

    def collect(self) -> Iterable[Metric]:
        return prometheus.server_metrics(self._source())


def register(source: Source) -> Callable[[], None]:
    """Show `source` in `/metrics` until the returned function is called."""
    collector = SnapshotCollector(source)
    REGISTRY.register(collector)
    return lambda: REGISTRY.unregister(collector)
