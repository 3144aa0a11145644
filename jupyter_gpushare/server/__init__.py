"""The Jupyter server extension: REST routes, a WebSocket with snapshots, and keeping a coordinator alive."""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by jupyter_server for each extension it finds; imports nothing heavy before that."""
    from .app import GpuShareApp

    return [{"module": "jupyter_gpushare.server", "app": GpuShareApp}]
