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

from .calls import QUOTA_KEYS, pairs
from .errors import Mistake
from .magics import usage_errors

if TYPE_CHECKING:
    from .layers import Layer, Layers

_CHANGE = "get_ipython().run_cell_magic('gpushare', "
_LINE = re.compile(r"%%gpushare(?=\s|$)(.*)", re.DOTALL)
_running: ContextVar[list[Layer] | None] = ContextVar("gpushare_running", default=None)  # what this cell changed


def transform(lines: list[str]) -> list[str]:
    """The lines of a cell, without a `%%gpushare` line; another cell magic may follow it."""
    match = _LINE.match(lines[0]) if lines else None
    if not match or not "".join(lines[1:]).strip():
        return lines
    # The text of the cell follows; IPython passes on what stands in its place here.
    change = f"{_CHANGE}{match[1].strip()!r}, ...)\n"
    below = lines[1:]
    while below and not below[0].strip():
        del below[0]
    if not below[0].startswith("%%"):
        return [change, *lines[1:]]
    from IPython.core.inputtransformer2 import cell_magic

    return [change, *cell_magic(transform(below))]  # type: ignore[no-untyped-call]


def install(shell: Any, layers: Layers) -> None:
    """Make `%%gpushare` known to IPython."""

    def gpushare(line: str, cell: Any) -> None:
        if cell is ...:
            _show_as_written(line)
        with usage_errors():
            changes = _changes(line, cell)
            mine = _running.get()
            if cell is not ...:
                _run_text(shell, layers, changes, cell)
            elif mine is None:
                raise Mistake("%%gpushare works as the first line of a cell")
            else:
                mine.append(layers.begin(changes))

    gpushare.__doc__ = "%%gpushare key=value …: change this kernel's quota for one cell. Keys: " + ", ".join(QUOTA_KEYS)
    shell.register_magic_function(gpushare, "cell", "gpushare")
    shell.input_transformer_manager.line_transforms.insert(0, transform)
    shell.run_cell_async = _taking_back(shell.run_cell_async, layers)


def _changes(line: str, cell: Any) -> dict[str, str]:
    if isinstance(cell, str) and not cell.strip():
        raise Mistake(f"%%gpushare is for the cell below it, which is empty; for all cells: %gpushare {line}".rstrip())
    if not line.strip():
        raise Mistake(f"%%gpushare needs key=value, for example class=offline; keys are {', '.join(QUOTA_KEYS)}")
    return pairs(line)


def _show_as_written(line: str) -> None:
    """Tracebacks show the line of the cell that runs now as its user wrote it, not what it became.

    As a comment: what shows them finds its way about a cell's text only where that is Python.
    """
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    lines = linecache.getlines(frame.f_code.co_filename)
    place = frame.f_lineno - 1
    if place < len(lines) and lines[place].startswith(_CHANGE):
        lines[place] = f"# %%gpushare {line}\n"  # in the cache: IPython keeps the text of cells nowhere else


def _run_text(shell: Any, layers: Layers, changes: dict[str, str], text: str) -> None:
    """For scripts that were exported from a notebook, where the cell is a text."""
    layer = layers.begin(changes)
    try:
        result = shell.run_cell(text)
    finally:
        layers.end(layer)
    result.raise_error()


def _taking_back(run_cell_async: Any, layers: Layers) -> Any:
    """Every way of running a cell goes through this method of the shell, nested and silent ones as well."""

    @wraps(run_cell_async)
    async def run(*args: Any, **options: Any) -> Any:
        outer = _running.get()
        mine: list[Layer] = []
        _running.set(mine)
        try:
            return await run_cell_async(*args, **options)
        finally:
            _running.set(outer)
            for layer in reversed(mine):
                layers.end(layer)

    return run
