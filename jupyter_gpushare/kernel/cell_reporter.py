"""Reports of the requests that a kernel executes, at their start and end.

In ipykernel, each execution of a request is one call of the entry `execute_request` of `shell_handlers`.
Silent requests, subshells and errors before the first line are such calls as well, and aborted requests are not.
The call ends after the user expressions.
IPython's own events lack silent requests and end before the user expressions.
The events serve only where the table is missing: IPython in a terminal, and kernels without ipykernel.

PyTorch and CuPy keep freed memory in caches, whose content would move with the turns although no program needs it. So
the end of a cell releases these caches while memory is short. JAX has no call for a release.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import re
import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import KernelConnection
    from .wait_display import WaitDisplay

# The request that runs, if the kernel reports it.
current_request: ContextVar[str] = ContextVar("gpushare_request", default="")
MAX_CELL_ID_LENGTH = 64  # characters, in the notebook format
_NOT_ALLOWED = re.compile(r"[^\w.:@-]", re.ASCII)


def request_id(parent: Any) -> str:
    """Return the `msg_id` of a request, in the characters that the protocol allows."""
    try:
        return _NOT_ALLOWED.sub("-", str(parent["header"]["msg_id"]))[:128] or "unnamed"
    except (KeyError, TypeError):
        return "unnamed"


def cell_id(parent: Any) -> str:
    """Return the id of the request's cell, as JupyterLab sends it, or "" without an id."""
    try:
        found = parent["metadata"]["cellId"]
    except (KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and len(found) <= MAX_CELL_ID_LENGTH else ""


def cell_text(parent: Any) -> str:
    """Return the code of a request, or "" without code."""
    try:
        code = parent["content"]["code"]
    except (KeyError, TypeError):
        return ""
    return code if isinstance(code, str) else ""


def install(shell: Any, connection: KernelConnection, wait_display: WaitDisplay | None = None) -> None:
    """Report the requests that `shell` runs from now on; `wait_display` shows their waits."""
    kernel = getattr(shell, "kernel", None)
    tables = [getattr(kernel, name, None) for name in ("shell_handlers", "control_handlers")]
    found = [table for table in tables if isinstance(table, dict) and callable(table.get("execute_request"))]
    for table in found:
        table["execute_request"] = _with_reports(table["execute_request"], connection, wait_display)
    if not found:
        _install_events(shell, connection)


def _with_reports(
    handler: Callable[..., Any], connection: KernelConnection, wait_display: WaitDisplay | None = None
) -> Callable[..., Any]:
    async def execute_request(stream: Any, ident: Any, parent: Any) -> None:
        request = request_id(parent)
        outer = current_request.get()
        current_request.set(request)
        connection.begin(request, cell_id(parent), cell_text(parent))
        if wait_display is not None:
            wait_display.begin(request, parent)
        try:
            result = handler(stream, ident, parent)
            if inspect.isawaitable(result):
                await result
        finally:
            current_request.set(outer)
            _end(connection, request)
            if wait_display is not None:
                wait_display.end(request)

    return execute_request


def _end(connection: KernelConnection, request: str) -> None:
    """Report the end of a request, which ends the progress that it shows.

    If memory is short, release the frameworks' caches first, before memory moves.
    """
    end_progress = getattr(ctypes.CDLL(None), "gpushare_progress_end", None)
    if end_progress is not None:
        end_progress()
    try:
        if connection.may_release_caches(request):
            _release_framework_caches()
    finally:
        connection.end(request)


def _release_framework_caches() -> None:
    """Release the cached memory of the frameworks that the program has imported and used.

    A fault of a framework has no effect on the cell, which has ended.
    """
    with contextlib.suppress(Exception):
        cuda = sys.modules["torch"].cuda
        if cuda.is_initialized():
            cuda.empty_cache()
    with contextlib.suppress(Exception):
        pool = sys.modules["cupy"].get_default_memory_pool()
        if pool.n_free_blocks():
            pool.free_all_blocks()


def _install_events(shell: Any, connection: KernelConnection) -> None:
    running: list[str] = []

    def started(info: Any = None) -> None:
        running.append(f"cell-{len(running)}")
        connection.begin(running[-1])

    def ended(result: Any = None) -> None:
        if running:
            _end(connection, running.pop())

    shell.events.register("pre_run_cell", started)
    shell.events.register("post_run_cell", ended)
