"""HTML of a view, with inline styles only, because front ends differ in the other styles that they accept.

Text has the front end's colour, if the front end defines one.
"""

from __future__ import annotations

from html import escape

from ..kernel.display import report_html
from ..kernel.display.report import Report

_TEXT = "line-height:1.5;color:var(--jp-ui-font-color1,var(--vscode-foreground,inherit))"


def page(report: Report) -> str:
    """Return the whole state."""
    return _frame(report_html.page(report))


def notice(headline: str, text: str = "") -> str:
    """Return a notice in place of a state, with the problem and the next step."""
    more = f"<div>{escape(text)}</div>" if text else ""
    return _frame(f"<div><strong>{escape(headline)}</strong></div>{more}")


def message(text: str, is_error: bool = False) -> str:
    """Return the result of an action, which screen readers read at once."""
    if not text:
        return ""
    sign, role = ("⚠ ", "alert") if is_error else ("", "status")
    lines = "<br>".join(escape(line) for line in text.splitlines())
    return f'<div role="{role}" style="{_TEXT}">{sign}{lines}</div>'


def muted(text: str) -> str:
    """Return a text of less importance."""
    return f'<div style="{_TEXT};opacity:0.8">{escape(text)}</div>' if text else ""


def _frame(inner: str) -> str:
    return f'<div style="{_TEXT}">{inner}</div>'
