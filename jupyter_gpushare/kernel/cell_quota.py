"""`%%gpushare class=offline share=0.3`: a quota for one cell.

The line becomes one line of Python that makes the change, and the cell stays a cell: `await`, tracebacks, line
numbers and the display of its last expression are as without it, which a cell magic that ran the text of the
cell could not give. If the change is refused, that line raises and the rest does not run. Rewriting the text has
no side effects, since completion does it as well. What is changed is taken back where IPython ends running the cell.
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
_cell_quotas: ContextVar[list[CellQuota] | None] = ContextVar(
    "gpushare_running", default=None
)  # what this cell changed


def transform(lines: list[str]) -> list[str]:
    """The lines of a cell, without a `%%gpushare` line; another cell magic may follow it."""
    match = _MAGIC_LINE.match(lines[0]) if lines else None
    if not match or not "".join(lines[1:]).strip():
        return lines
    # The text of the cell follows; IPython passes on what stands in its place here.
    change = f"{_CHANGE_CALL}{match[1].strip()!r}, ...)\n"
    below = lines[1:]
    while below and not below[0].strip():
        del below[0]
    if not below[0].startswith("%%"):
        return [change, *lines[1:]]
    from IPython.core.inputtransformer2 import cell_magic

    return [change, *cell_magic(transform(below))]  # type: ignore[no-untyped-call]


class CellQuotas:
    """The quotas of one kernel's cells. The coordinator holds them, and drops them with the cell or the kernel."""

    def __init__(self, calls: ClientApi, connection: KernelConnection | None) -> None:
        self._calls = calls
        self._connection = connection

    def begin(self, changes: dict[str, str]) -> CellQuota:
        """Change the quota until `end`. Raises GpuShareError, and has changed nothing then."""
        if self._connection is None:
            self._calls.quota(changes)  # raises: nothing is shared, or no coordinator is known
            raise NotShared("this kernel has no connection to a coordinator")
        quota = self._connection.set_quota(current_request.get(), changes)
        if "share" in changes:
            for note in quota.result["notes"]:
                print(f"Note: {note}")
        return quota

    def end(self, quota: CellQuota) -> None:
        """Take a change back, now or as soon as the coordinator answers."""
        for sentence in self._connection.unset_quota(quota) if self._connection else ():
            print(f"gpushare: {sentence}", file=sys.stderr)


def install(shell: Any, quotas: CellQuotas) -> None:
    """Make `%%gpushare` known to IPython."""

    def gpushare(line: str, cell: Any) -> None:
        if cell is ...:
            _restore_source_line(line)
        with usage_errors():
            changes = _changes(line, cell)
            mine = _cell_quotas.get()
            if cell is not ...:
                _run_text(shell, quotas, changes, cell)
            elif mine is None:
                raise UsageError("%%gpushare works as the first line of a cell")
            else:
                mine.append(quotas.begin(changes))

    gpushare.__doc__ = "%%gpushare key=value …: change this kernel's quota for one cell. Keys: " + ", ".join(QUOTA_KEYS)
    shell.register_magic_function(gpushare, "cell", "gpushare")
    shell.input_transformer_manager.line_transforms.insert(0, transform)
    shell.run_cell_async = _restoring(shell.run_cell_async, quotas)


def _changes(line: str, cell: Any) -> dict[str, str]:
    if isinstance(cell, str) and not cell.strip():
        raise UsageError(
            f"%%gpushare is for the cell below it, which is empty; for all cells: %gpushare {line}".rstrip()
        )
    if not line.strip():
        raise UsageError(f"%%gpushare needs key=value, for example class=offline; keys are {', '.join(QUOTA_KEYS)}")
    return parse_changes(line)


def _restore_source_line(line: str) -> None:
    """Tracebacks show the line of the cell that runs now as its user wrote it, not what it became.

    As a comment: what shows them finds its way about a cell's text only where that is Python.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    lines = linecache.getlines(frame.f_code.co_filename)
    place = frame.f_lineno - 1
    if place < len(lines) and lines[place].startswith(_CHANGE_CALL):
        lines[place] = f"# %%gpushare {line}\n"  # in the cache: IPython keeps the text of cells nowhere else


def _run_text(shell: Any, quotas: CellQuotas, changes: dict[str, str], text: str) -> None:
    """For scripts that were exported from a notebook, where the cell is a text."""
    quota = quotas.begin(changes)
    try:
        result = shell.run_cell(text)
    finally:
        quotas.end(quota)
    result.raise_error()


def _restoring(run_cell_async: Any, quotas: CellQuotas) -> Any:
    """Every way of running a cell goes through this method of the shell, nested and silent ones as well."""

    @wraps(run_cell_async)
    async def run(*args: Any, **options: Any) -> Any:
        outer = _cell_quotas.get()
        mine: list[CellQuota] = []
        _cell_quotas.set(mine)
        try:
            return await run_cell_async(*args, **options)
        finally:
            _cell_quotas.set(outer)
            for quota in reversed(mine):
                quotas.end(quota)

    return run
