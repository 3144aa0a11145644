"""The plot of `%gpushare history`: an inline SVG without script or style sheet."""

from __future__ import annotations

from html import escape
from itertools import groupby

from jupyter_gpushare.units import format_duration

from .history_data import EMPTY_TEXT, HistoryData
from .html import COLOURS, card, dot, element

# In units of the viewBox: the width, the marks above the lane, the lane, and the times below the lane.
WIDTH, TOP, HEIGHT, FOOT = 600, 10, 26, 18
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300)  # seconds between two times on the axis


def plot(history: HistoryData) -> str:
    """Return the history of a client as HTML."""
    if not history.entries:
        return card(escape(EMPTY_TEXT))
    label = history.summary()
    shapes = [f'<rect x="0" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="rgba(128,128,128,.18)" rx="3"/>']
    shapes += _lane(history) + _marks(history) + _axis(history)
    size = f'viewBox="0 0 {WIDTH} {TOP + HEIGHT + FOOT}" width="100%"'
    svg = f'<svg {size} role="img" aria-label="{escape(label)}" style="display:block">{"".join(shapes)}</svg>'
    return card(element("div", "margin-bottom:4px", escape(label)) + svg + _legend(history))


def _lane(history: HistoryData) -> list[str]:
    """Return one rectangle for each run of equal columns, so that the number of turns does not matter."""
    width = (history.now - history.begin) / WIDTH
    shapes, column = [], 0
    for state, run in groupby(history.columns(WIDTH)):
        length = len(list(run))
        if state not in ("", "idle"):
            title = f"{state}, about {format_duration(length * width)}, {format_duration((WIDTH - column) * width)} ago"
            shapes.append(
                f'<rect x="{column}" y="{TOP}" width="{length}" height="{HEIGHT}" fill="{COLOURS[state]}">'
                f"<title>{escape(title)}</title></rect>"
            )
        column += length
    return shapes


def _marks(history: HistoryData) -> list[str]:
    return [
        f'<path d="M{column + 0.5} 0V{TOP + HEIGHT}" stroke="currentColor" stroke-opacity=".55"/>'
        for column in history.marks(WIDTH)
    ]


def _axis(history: HistoryData) -> list[str]:
    span = history.now - history.begin
    step = next((one for one in _STEPS if span / one <= 6), _STEPS[-1])
    texts = []
    for ago in range(0, int(span) + 1, step):
        x = WIDTH * (1 - ago / span)
        if x < 30 and ago:
            break
        text = f"−{format_duration(ago)}" if ago else "now"
        anchor = "end" if ago == 0 else "middle"
        texts.append(
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 14}" text-anchor="{anchor}" font-size="11" '
            f'fill="currentColor" fill-opacity=".75">{text}</text>'
        )
    return texts


def _legend(history: HistoryData) -> str:
    states = ["running", "waiting"] + [state for state in ("held", "suspended") if history.total(state)]
    entries = [dot(COLOURS[state]) + state for state in states]
    entries.append(element("span", "opacity:.75;margin-right:6px", "│", aria_hidden="true") + "a cell begins")
    return element("div", "display:flex;gap:16px;flex-wrap:wrap", "".join(f"<span>{one}</span>" for one in entries))
