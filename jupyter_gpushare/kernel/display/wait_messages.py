"""What is said under a cell that waits for the GPU, from the coordinator's outlook."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from jupyter_gpushare.units import format_duration

from .html import COLOURS, Part, bar, element


class WaitMessage(NamedTuple):
    """One line as text and as HTML, and its facts for front ends that draw the wait themselves."""

    text: str
    html: str
    data: dict[str, Any]


def wait_in_progress(status: dict[str, Any], waited_seconds: float) -> WaitMessage:
    """ "Waiting for the GPU: #2, about 40 s (train.ipynb is running, 12 s left)"."""
    words = [f"#{status['queue_position']}"] if status.get("queue_position") else []
    expected = status.get("expected_wait")
    if expected is not None:
        words.append(f"about {_whole_seconds(expected)}")
    text = "Waiting for the GPU" + (": " + ", ".join(words) if words else "")
    running = status.get("running", [])
    if running:
        text += f" ({_running(running, expected)})"
    line = element("div", "", escape(text))
    if expected is not None:
        fraction = waited_seconds / max(waited_seconds + expected, 1e-9)
        line += bar([Part(fraction, COLOURS["waiting"], "")], f"waited {_whole_seconds(waited_seconds)}", height=4)
    facts = {name: status.get(name) for name in ("queue_position", "expected_wait", "running")}
    return WaitMessage(text, _footnote(line), {"state": "waiting", "waited_seconds": round(waited_seconds, 1), **facts})


def wait_suspended(client: str) -> WaitMessage:
    """It can't be resumed from within the notebook while a cell of it waits."""
    text = (
        "This kernel is suspended: its GPU calls wait until it is resumed. Interrupt the cell and run "
        f"%gpushare resume, or in a terminal: jupyter gpushare resume {client}"
    )
    return WaitMessage(text, _footnote(escape(text)), {"state": "suspended", "client": client})


def wait_finished(amount: float) -> WaitMessage:
    """The line that stays."""
    text = f"waited {_whole_seconds(amount)} for the GPU"
    return WaitMessage(text, _footnote(escape(text)), {"state": "ended", "waited_seconds": round(amount, 1)})


def wait_abandoned(amount: float) -> WaitMessage:
    """The line that stays of a wait that was interrupted."""
    text = f"stopped waiting for the GPU after {_whole_seconds(amount)}"
    return WaitMessage(text, _footnote(escape(text)), {"state": "interrupted", "waited_seconds": round(amount, 1)})


def _running(running: list[dict[str, Any]], expected: float | None) -> str:
    """The time left is until the deadline; where less is expected, it says so."""
    names = [str(other.get("label") or other.get("user") or "another kernel") for other in running]
    lefts = [other["seconds_left"] for other in running if other.get("seconds_left") is not None]
    one, several = "is running", "are running"
    if all(other.get("held") for other in running):
        one, several = "holds the GPU", "hold the GPU"
    text = f"{' and '.join(names[:2])} {one if len(names) == 1 else several}"
    if len(names) > 2:
        text = f"{names[0]} and {len(names) - 1} others {several}"
    if not lefts:
        return text
    at_most = "up to " if expected is not None and expected + 1 < min(lefts) else ""
    return f"{text}, {at_most}{_whole_seconds(min(lefts))} left"


def _whole_seconds(amount: float) -> str:
    """Return whole seconds, at least one: a figure that changes all the time needs no more."""
    return format_duration(max(1, round(amount)))


def _footnote(content: str) -> str:
    return element("div", "max-width:480px;font-size:12px;opacity:.85", content)
