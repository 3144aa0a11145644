"""Elements of HTML without scripts and style sheets: each element has its own style.

For light and dark themes, text has the colour of the page.
The colours of bars have a contrast of at least 3 to 1 with white and with near-black.
"""

from __future__ import annotations

from html import escape
from typing import NamedTuple

COLOURS = {
    "running": "#2a9159",
    "draining": "#2a9159",
    "held": "#6f8a2b",
    "waiting": "#b8741a",
    "suspended": "#8467cf",
    "idle": "#808080",
    "free": "#808080",
    "own": "#2f7fd1",
    "contexts": "#4f8a8b",
    "others1": "#9a7b5c",
    "others0": "#7d6a8f",
}
_TRACK = "rgba(128,128,128,.22)"


class Part(NamedTuple):
    """Part of a bar: its fraction of the bar, its colour and its tooltip."""

    fraction: float
    colour: str
    title: str


def element(tag: str, style: str, content: str, **attributes: str) -> str:
    """Return an element; `content` is HTML, and the attributes are text."""
    more = "".join(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in attributes.items())
    return f'<{tag} style="{style}"{more}>{content}</{tag}>'


def bar(parts: list[Part], label: str, height: int = 10) -> str:
    """Return a bar with the parts side by side on a track; screen readers read `label`."""
    room, pieces = 1.0, []
    for part in parts:
        width = min(max(part.fraction, 0.0), room)
        room -= width
        if width > 0:
            style = f"width:{100 * width:.2f}%;background:{part.colour};box-sizing:border-box"
            style += ";border-right:1px solid rgba(128,128,128,.4)"
            pieces.append(element("div", style, "", title=part.title))
    style = f"display:flex;height:{height}px;border-radius:{height // 2}px;overflow:hidden;background:{_TRACK}"
    return element("div", style, "".join(pieces), role="img", aria_label=label)


def dot(colour: str) -> str:
    style = f"display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:6px;background:{colour}"
    return element("span", style, "", aria_hidden="true")


def muted(text: str) -> str:
    return element("span", "opacity:.75", escape(text))


def card(content: str) -> str:
    style = "max-width:640px;padding:10px 14px;margin:4px 0;border:1px solid rgba(128,128,128,.35);border-radius:8px"
    return element("div", style + ";font-size:13px;line-height:1.5", content, **{"class": "gpushare-report"})


def grid(rows: list[tuple[str, str]]) -> str:
    """Return a table with a column of names (text) and a column of values (HTML)."""
    cells = "".join(name_cell(name) + element("div", "min-width:0", value) for name, value in rows)
    return element("div", "display:grid;grid-template-columns:max-content 1fr;gap:2px 14px", cells)


def name_cell(name: str) -> str:
    return element("div", "opacity:.75", escape(name))
