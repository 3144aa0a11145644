"""The HTML of a view: inline styles only, since front ends differ in what else they let through.

The colour of text is the front end's where it names one.
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
    """Return a notice in place of a state: what is the matter, and what to do."""
    more = f"<div>{escape(text)}</div>" if text else ""
    return _frame(f"<div><strong>{escape(headline)}</strong></div>{more}")


def message(text: str, wrong: bool = False) -> str:
    """Return the result of an action, which screen readers read out when it comes."""
    if not text:
        return ""
    sign, role = ("⚠ ", "alert") if wrong else ("", "status")
    lines = "<br>".join(escape(line) for line in text.splitlines())
    return f'<div role="{role}" style="{_TEXT}">{sign}{lines}</div>'


def muted(text: str) -> str:
    """Return a text that need not catch the eye."""
    return f'<div style="{_TEXT};opacity:0.8">{escape(text)}</div>' if text else ""


def _frame(inner: str) -> str:
    return f'<div style="{_TEXT}">{inner}</div>'
