"""Package that shares GPUs among notebook kernels.

The public functions act on the client of the calling program (`jupyter_gpushare.api`, `jupyter_gpushare.training`);
`GpuShareView` is a widget.
A public name is imported at its first use, because every `jupyter gpushare` command and every start of a shared kernel
imports this module.
This module also has the entry points of IPython, the Jupyter server and JupyterLab.
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
    from .training import progress, step
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
    "move",
    "progress",
    "quota",
    "release",
    "resume",
    "status",
    "step",
    "suspend",
]

__version__ = "0.1.0"

# Modules of the public names that are not in `.api`; `.widgets` needs ipywidgets.
_MODULES = {"GpuShareView": ".widgets", "progress": ".training", "step": ".training"}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in __all__:
        module = _MODULES.get(name, ".api")
        found = globals()[name] = getattr(import_module(module, __name__), name)  # a training loop uses `step` often
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def load_ipython_extension(shell: Any) -> None:
    """Register `%gpushare` after `%load_ext jupyter_gpushare`, as in `ipython script.ipy`."""
    import sys

    if getattr(sys.modules.get("_gpushare_kernel.session"), "active_session", None) is None:
        from .kernel.session import activate

        activate(shell, is_requested=True)


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the server extension to jupyter_server, which reads `jupyter_server_config.d/jupyter_gpushare.json`."""
    from .server.app import GpuShareApp

    return [{"module": "jupyter_gpushare.server", "app": GpuShareApp}]


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Return the built lab extension to `jupyter labextension develop`, which links it into the environment."""
    return [{"src": "labextension", "dest": "jupyter-gpushare"}]
