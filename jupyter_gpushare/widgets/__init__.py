"""`GpuShareView()`: how this kernel shares its GPU, live, with controls, as an ipywidgets view.

It is shown by any front end that shows ipywidgets: JupyterLab, Notebook 7, VS Code, Voila.
"""

from __future__ import annotations

try:
    import ipywidgets as _ipywidgets  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"GpuShareView needs ipywidgets, which cannot be imported ({error}): "
        "%pip install 'jupyter-gpushare[widgets]', then restart the kernel"
    ) from error

from .view import GpuShareView

__all__ = ["GpuShareView"]
