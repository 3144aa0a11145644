"""Many notebook kernels share one GPU.

`status`, `quota`, `hold`, `release`, `evict`, `suspend`, `resume` and `history` are about the program that calls them
(`jupyter_gpushare.api`); `GpuShareView` is a widget. They are imported when they are used: every `jupyter gpushare …`
command and every start of a shared kernel imports this module, which stays small on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .api import (
        GpuShareError,
        NotShared,
        Refused,
        Unreachable,
        UsageError,
        evict,
        history,
        hold,
        quota,
        release,
        resume,
        status,
        suspend,
    )
    from .widgets import GpuShareView

__all__ = [
    "GpuShareError",
    "GpuShareView",
    "NotShared",
    "Refused",
    "Unreachable",
    "UsageError",
    "evict",
    "history",
    "hold",
    "quota",
    "release",
    "resume",
    "status",
    "suspend",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in __all__:
        home = ".widgets" if name == "GpuShareView" else ".api"  # the former needs ipywidgets
        return getattr(import_module(home, __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext jupyter_gpushare`: `%gpushare` where nothing has started it, as in `ipython script.ipy`."""
    import sys

    if getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None) is None:
        from .kernel.session import activate

        activate(shell, asked_for=True)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Called by jupyter_server, which finds us through `jupyter_server_config.d/jupyter_gpushare.json`."""
    from .server.app import GpuShareApp

    return [{"module": "jupyter_gpushare.server", "app": GpuShareApp}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Called by `jupyter labextension develop`, to link the built extension into the environment."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]
