"""Cell quotas: `%%gpushare share=0.3 limit=0.9` as the first line of a cell.

A transformer of IPython replaces the line by a line of Python that changes the quota.
The cell remains a cell, with its own `await`, tracebacks, line numbers and display of the last expression.
A cell magic that executes the text of the cell would lose these.
If the coordinator refuses the change, the line raises, and IPython does not run the rest of the cell.
The transformation has no side effects, because completion transforms the text as well.
The change ends when IPython has run the cell.
"""

from __future__ import annotations

import linecache
import re
import sys
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from .cell_reporter import current_request
from .client_api import QUOTA_KEYS, ClientApi, parse_changes
from .errors import NotShared, UsageError
from .magics import usage_errors

if TYPE_CHECKING:
    from .connection import CellQuota, KernelConnection

_CHANGE_CALL = "get_ipython().run_cell_magic('gpushare', "
_MAGIC_LINE = re.compile(r"%%gpushare(?=\s|$)(.*)", re.DOTALL)
# The changes of the quota by the cell that runs.
_cell_quotas: ContextVar[list[CellQuota] | None] = ContextVar("gpushare_running", default=None)


def transform(lines: list[str]) -> list[str]:
    """Replace a `%%gpushare` line at the beginning of a cell; another cell magic may follow the line."""
    match = _MAGIC_LINE.match(lines[0]) if lines else None
    if not match or not "".join(lines[1:]).strip():
        return lines
    # The text of the cell follows as code, so the magic gets an ellipsis in place of the text.
    change = f"{_CHANGE_CALL}{match[1].strip()!r}, ...)\n"
    below = lines[1:]
    while below and not below[0].strip():
        del below[0]
    if not below[0].startswith("%%"):
        return [change, *lines[1:]]
    from IPython.core.inputtransformer2 import cell_magic

    return [change, *cell_magic(transform(below))]  # type: ignore[no-untyped-call]


class CellQuotas:
    """Quotas of one kernel's cells. The coordinator drops each of the quotas with its cell or with the kernel."""

    def __init__(self, calls: ClientApi, connection: KernelConnection | None) -> None:
        self._calls = calls
        self._connection = connection

    def begin(self, changes: dict[str, str]) -> CellQuota:
        """Change the quota until `end`. Raise GpuShareError if nothing has changed."""
        if self._connection is None:
            # The call raises the reason: the kernel does not share its GPU, or it has no coordinator.
            self._calls.quota(changes)
            raise NotShared("this kernel has no connection to a coordinator")
        quota = self._connection.set_quota(current_request.get(), changes)
        if "share" in changes:
            for note in quota.result["notes"]:
                print(f"Note: {note}")
        return quota

    def end(self, quota: CellQuota) -> None:
        """Undo a change, now or as soon as the coordinator answers."""
        for message in self._connection.unset_quota(quota) if self._connection else ():
            print(f"gpushare: {message}", file=sys.stderr)


def install(shell: Any, quotas: CellQuotas) -> None:
    """Register `%%gpushare` with IPython."""

    def gpushare(line: str, cell: Any) -> None:
        if cell is ...:
            _restore_source_line(line)
        with usage_errors():
            changes = _changes(line, cell)
            cell_quotas = _cell_quotas.get()
            if cell is not ...:
                _run_text(shell, quotas, changes, cell)
            elif cell_quotas is None:
                raise UsageError("%%gpushare must be the first line of a cell")
            else:
                cell_quotas.append(quotas.begin(changes))

    gpushare.__doc__ = "%%gpushare key=value …: change this kernel's quota for one cell. Keys: " + ", ".join(QUOTA_KEYS)
    shell.register_magic_function(gpushare, "cell", "gpushare")
    shell.input_transformer_manager.line_transforms.insert(0, transform)
    shell.run_cell_async = _restoring(shell.run_cell_async, quotas)


def _changes(line: str, cell: Any) -> dict[str, str]:
    if isinstance(cell, str) and not cell.strip():
        raise UsageError(
            f"%%gpushare changes the quota of its cell, but the cell is empty; for all cells: %gpushare {line}".rstrip()
        )
    if not line.strip():
        raise UsageError(f"%%gpushare needs key=value, for example class=offline; keys are {', '.join(QUOTA_KEYS)}")
    return parse_changes(line)


def _restore_source_line(line: str) -> None:
    """Restore the user's line in the source of the running cell, so that tracebacks show the original line.

    The line becomes a comment, because the formatter of tracebacks requires text that is Python.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    lines = linecache.getlines(frame.f_code.co_filename)
    index = frame.f_lineno - 1
    if index < len(lines) and lines[index].startswith(_CHANGE_CALL):
        lines[index] = f"# %%gpushare {line}\n"  # `lines` is the cache, the only place of the text of cells


def _run_text(shell: Any, quotas: CellQuotas, changes: dict[str, str], text: str) -> None:
    """Run the text of a cell with the quota, for scripts that were exported from a notebook."""
    quota = quotas.begin(changes)
    try:
        result = shell.run_cell(text)
    finally:
        quotas.end(quota)
    result.raise_error()


def _restoring(run_cell_async: Any, quotas: CellQuotas) -> Any:
    """Wrap the method of the shell that runs every cell, also nested and silent cells."""

    @wraps(run_cell_async)
    async def run(*args: Any, **options: Any) -> Any:
        outer = _cell_quotas.get()
        cell_quotas: list[CellQuota] = []
        _cell_quotas.set(cell_quotas)
        try:
            return await run_cell_async(*args, **options)
        finally:
            _cell_quotas.set(outer)
            for quota in reversed(cell_quotas):
                quotas.end(quota)

    return run
