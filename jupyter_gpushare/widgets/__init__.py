"""Widget `GpuShareView()`, which shows live how this kernel shares its GPU and has controls.

Every front end with ipywidgets can display the widget: JupyterLab, Notebook 7, VS Code and Voila.
"""

from __future__ import annotations

try:
    import ipywidgets as _ipywidgets  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"GpuShareView needs ipywidgets, but the import fails ({error}). "
        "Run %pip install 'jupyter-gpushare[widgets]', then restart the kernel."
    ) from error

from .view import GpuShareView

__all__ = ["GpuShareView"]
