"""Messages under a cell that waits for the GPU, from the coordinator's answer to `wait_status`."""

from __future__ import annotations

from html import escape
from typing import Any, NamedTuple

from jupyter_gpushare.units import format_duration

from .html import COLOURS, Part, bar, element


class WaitMessage(NamedTuple):
    """Message of one line as text and as HTML, with data for front ends that have their own display of the wait."""

    text: str
    html: str
    data: dict[str, Any]


def wait_in_progress(status: dict[str, Any], waited_seconds: float) -> WaitMessage:
    """Format a wait: "Waiting for the GPU: #2, about 40 s (train.ipynb is running, 12 s left)"."""
    words = [f"#{status['queue_position']}"] if status.get("queue_position") else []
    expected = status.get("expected_wait")
    if expected is not None:
        words.append(f"about {_whole_seconds(expected)}")
    text = "Waiting for the GPU" + (": " + ", ".join(words) if words else "")
    running = status.get("running", [])
    if status.get("reason"):
        text = f"Waiting for the GPU: {status['reason']}"
    elif running:
        text += f" ({_running(running, expected)})"
    line = element("div", "", escape(text))
    if expected is not None:
        fraction = waited_seconds / max(waited_seconds + expected, 1e-9)
        line += bar([Part(fraction, COLOURS["waiting"], "")], f"waited {_whole_seconds(waited_seconds)}", height=4)
    facts = {name: status.get(name) for name in ("queue_position", "expected_wait", "running")}
    return WaitMessage(text, _footnote(line), {"state": "waiting", "waited_seconds": round(waited_seconds, 1), **facts})


def wait_suspended(client: str) -> WaitMessage:
    """Format the wait of a suspended kernel, which cannot run `%gpushare resume` while one of its cells waits."""
    text = (
        "This kernel is suspended: its GPU calls wait until you resume the kernel. Interrupt the cell and run "
        f"%gpushare resume, or run in a terminal: jupyter gpushare resume {client}"
    )
    return WaitMessage(text, _footnote(escape(text)), {"state": "suspended", "client": client})


def wait_finished(seconds: float) -> WaitMessage:
    """Format the message that remains after a wait."""
    text = f"waited {_whole_seconds(seconds)} for the GPU"
    return WaitMessage(text, _footnote(escape(text)), {"state": "ended", "waited_seconds": round(seconds, 1)})


def wait_abandoned(seconds: float) -> WaitMessage:
    """Format the message that remains after a wait that the user has interrupted."""
    text = f"stopped waiting for the GPU after {_whole_seconds(seconds)}"
    return WaitMessage(text, _footnote(escape(text)), {"state": "interrupted", "waited_seconds": round(seconds, 1)})


def _running(running: list[dict[str, Any]], expected: float | None) -> str:
    """Format the clients that have a turn, and the time until the deadline.

    "Up to" marks a turn that should end before its deadline.
    """
    names = [str(client.get("label") or client.get("user") or "another kernel") for client in running]
    seconds_left = [client["seconds_left"] for client in running if client.get("seconds_left") is not None]
    singular, plural = "is running", "are running"
    if all(client.get("held") for client in running):
        singular, plural = "holds the GPU", "hold the GPU"
    text = f"{' and '.join(names[:2])} {singular if len(names) == 1 else plural}"
    if len(names) > 2:
        text = f"{names[0]} and {len(names) - 1} others {plural}"
    if not seconds_left:
        return text
    up_to = "up to " if expected is not None and expected + 1 < min(seconds_left) else ""
    return f"{text}, {up_to}{_whole_seconds(min(seconds_left))} left"


def _whole_seconds(seconds: float) -> str:
    """Return a duration in whole seconds, at least one, because the figure changes every second."""
    return format_duration(max(1, round(seconds)))


def _footnote(content: str) -> str:
    return element("div", "max-width:480px;font-size:12px;opacity:.85", content)
