"""The HTML of a view: inline styles only, since front ends differ in what else they let through.

Colours are taken from the front end where it names them; ours have a contrast of more than 3 to 1 to white and to
nearly black, and nothing is told by colour alone.
"""

from __future__ import annotations

from html import escape

from ..units import format_size
from .picture import Device, Memory, Picture, Turn

_OWN = "#3d7fc4"
_OTHERS = "repeating-linear-gradient(45deg,#808080 0 4px,#9a9a9a 4px 8px)"
_TEXT = "line-height:1.5;color:var(--jp-ui-font-color1,var(--vscode-foreground,inherit))"
_CELL = "padding:0 1em 0 0;text-align:left;vertical-align:top;font-weight:normal"
_FAINT = "opacity:0.8"


def page(picture: Picture) -> str:
    """The whole state."""
    rows = "".join(
        f'<tr><th scope="row" style="{_CELL};{_FAINT}">{escape(what)}</th><td style="{_CELL}">{escape(value)}</td></tr>'
        for what, value in picture.details
    )
    parts = [_heading(picture), f'<table style="border-spacing:0">{rows}</table>']
    parts += [_device(device) for device in picture.devices]
    parts += [f"<p style='margin:4px 0'>{escape(note)}</p>" for note in picture.notes]
    return _frame("".join(parts))


def sentence(headline: str, text: str = "") -> str:
    """Where there is no state to show: what is the matter, and what to do."""
    more = f"<div>{escape(text)}</div>" if text else ""
    return _frame(f"<div><strong>{escape(headline)}</strong></div>{more}")


def message(text: str, wrong: bool = False) -> str:
    """What an action brought; screen readers read it out when it comes."""
    if not text:
        return ""
    sign, role = ("⚠ ", "alert") if wrong else ("", "status")
    lines = "<br>".join(escape(line) for line in text.splitlines())
    return f'<div role="{role}" style="{_TEXT}">{sign}{lines}</div>'


def faint(text: str) -> str:
    """What need not catch the eye."""
    return f'<div style="{_TEXT};{_FAINT}">{escape(text)}</div>' if text else ""


def _frame(inner: str) -> str:
    return f'<div style="{_TEXT}">{inner}</div>'


def _heading(picture: Picture) -> str:
    simulated = " <em>(simulated device)</em>" if picture.simulated else ""
    return f"<div><strong>GPU: {escape(picture.headline)}</strong>{simulated}</div>"


def _device(device: Device) -> str:
    turns = "".join(_turn(turn) for turn in device.turns)
    table = f'<table style="border-spacing:0">{turns}</table>' if turns else "<div>nobody runs or waits</div>"
    return f'<div style="margin-top:8px"><div>{escape(device.name)}</div>{_bar(device.memory)}{table}</div>'


def _turn(turn: Turn) -> str:
    name = f"<strong>{escape(turn.name)}</strong>" if turn.own else escape(turn.name)
    cells = "".join(f'<td style="{_CELL}">{cell}</td>' for cell in (name, escape(turn.time)))
    return f'<tr><th scope="row" style="{_CELL};{_FAINT}">{escape(turn.place)}</th>{cells}</tr>'


def _bar(memory: Memory) -> str:
    about = "about " if memory.about else ""
    words = (
        f"{about}{format_size(memory.own)} this kernel, {format_size(memory.others)} others, "
        f"{format_size(memory.free)} free of {format_size(memory.total)}"
    )
    pieces = "".join(
        f'<span style="flex:0 0 {100 * size / memory.total:.1f}%;background:{colour}"></span>'
        for size, colour in ((memory.own, _OWN), (memory.others, _OTHERS))
        if size and memory.total
    )
    frame = "display:flex;height:12px;max-width:400px;border:1px solid #808080;border-radius:3px;overflow:hidden"
    return (
        f'<div role="img" aria-label="Memory: {escape(words)}" style="{frame}">{pieces}</div><div>{escape(words)}</div>'
    )
