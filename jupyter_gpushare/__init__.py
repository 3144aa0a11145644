"""Many notebook kernels share one GPU.

This module stays small on purpose: every `jupyter gpushare …` command and every start of a shared kernel
imports it.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by jupyter_server, which finds us through `jupyter_server_config.d/jupyter_gpushare.json`."""
    from .server.app import GpuShareApp

    return [{"module": "jupyter_gpushare.server", "app": GpuShareApp}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Called by `jupyter labextension develop`, to link the built extension into the environment."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]


def __getattr__(name: str) -> Any:
    """`GpuShareView`, when it is asked for: it needs ipywidgets."""
    if name == "GpuShareView":
        from .widgets import GpuShareView

        return GpuShareView
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
