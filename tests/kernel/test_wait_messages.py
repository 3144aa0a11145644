"""Tests of the polls of the wait display, and of its texts for the coordinator's replies."""

from __future__ import annotations

import threading
import time
import timeit
from typing import Any

import pytest

from jupyter_gpushare.kernel import wait_display
from jupyter_gpushare.kernel.display.wait_messages import (
    wait_abandoned,
    wait_finished,
    wait_in_progress,
    wait_suspended,
)
from jupyter_gpushare.kernel.wait_display import WaitDisplay


class Front:
    """Front end and coordinator of a `WaitDisplay` without a kernel."""

    def __init__(self) -> None:
        self.polls = 0
        self.status: dict[str, Any] = {"waiting": False, "waited_seconds": 0.0, "wait_seconds": 0.0, "suspended": False}
        self.shown: list[str] = []
        self.display = WaitDisplay(
            "k", self._status, lambda parent, display, message, is_update: self.shown.append(message.text)
        )

    def _status(self) -> dict[str, Any]:
        self.polls += 1
        return {"has_turn": False, "turn_count": 0, **self.status}

    def begin(self, request: str, **content: Any) -> None:
        self.display.begin(request, {"content": {"allow_stdin": True, **content}})


def test_only_long_cells_poll_the_coordinator(wait_until: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread wakes a hundred times, and the time of the cells is virtual."""
    now, wakes = [100.0], [0]

    def sleep(seconds: float) -> None:
        wakes[0] += 1
        time.sleep(0.001)

    monkeypatch.setattr(wait_display, "monotonic", lambda: now[0])
    monkeypatch.setattr(wait_display, "sleep", sleep)
    front = Front()
    while wakes[0] < 100:
        front.begin("short")
        now[0] += wait_display.POLL_SECONDS / 2
        front.display.end("short")
    front.begin("program", allow_stdin=False)
    front.begin("silent", silent=True)
    now[0] += wait_display.POLL_SECONDS
    assert front.polls == 0
    front.begin("long")
    now[0] += wait_display.POLL_SECONDS
    wait_until(lambda: front.polls > 1)
    front.display.end("long")
    assert front.shown == []


class Interrupted:
    """Result of a cell that the user has interrupted."""

    error_in_exec = KeyboardInterrupt()


@pytest.mark.parametrize(
    ("after", "last"),
    [({}, "stopped waiting for the GPU after 3 s"), ({"has_turn": True, "turn_count": 1}, "waited 3 s for the GPU")],
)
def test_a_poll_between_the_interrupt_and_the_end_of_the_cell(
    after: dict[str, Any], last: str, wait_until: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that an interrupt has ended is over for the coordinator before the cell ends."""
    monkeypatch.setattr("jupyter_gpushare.kernel.wait_display.POLL_SECONDS", 0.01)
    front = Front()
    front.status |= {"waiting": True, "waited_seconds": 3.0, "wait_seconds": 3.0}
    front.begin("cell")
    front.display._running["cell"].started_at -= 10.0
    wait_until(lambda: front.shown == ["Waiting for the GPU"])
    front.status |= {"waiting": False, "waited_seconds": 0.0, **after}
    wait_until(lambda: front.shown[1:] == ["waited 3 s for the GPU"])
    front.display.on_cell_ran(Interrupted())
    front.display.end("cell")
    assert front.shown[-1] == last


def test_wait_display_adds_little_time_to_a_cell() -> None:
    front = Front()
    front.begin("x")

    def begin_and_end() -> None:
        front.begin("y")
        front.display.end("y")

    assert min(timeit.repeat(begin_and_end, number=200, repeat=10, timer=time.thread_time)) / 200 < 50e-6
    assert sum(thread.name == "gpushare-waiting" for thread in threading.enumerate()) >= 1


def running(**facts: Any) -> dict[str, Any]:
    return {"client": "c", "label": "", "user": "alice", "seconds_left": None, **facts}


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"queue_position": 2, "expected_wait": 40.2}, "Waiting for the GPU: #2, about 40 s"),
        ({"running": [running()]}, "Waiting for the GPU (alice is running)"),
        (
            {"queue_position": 1, "running": [running(label="a.ipynb", seconds_left=12.3), running(seconds_left=3)]},
            "Waiting for the GPU: #1 (a.ipynb and alice are running, 3 s left)",
        ),
        (
            {"expected_wait": 8.0, "running": [running(label="a.ipynb", seconds_left=600)]},
            "Waiting for the GPU: about 8 s (a.ipynb is running, up to 10 min left)",
        ),
        ({"running": [running()] * 3}, "Waiting for the GPU (alice and 2 others are running)"),
        (
            {"running": [running(label="a.ipynb", seconds_left=300, held=True)]},
            "Waiting for the GPU (a.ipynb holds the GPU, 5 min left)",
        ),
        (
            {"running": [running(held=True), running(label="a.ipynb", held=True)]},
            "Waiting for the GPU (alice and a.ipynb hold the GPU)",
        ),
        ({"running": [running(held=True), running(label="a")]}, "Waiting for the GPU (alice and a are running)"),
        ({"expected_wait": 0.2}, "Waiting for the GPU: about 1 s"),
        ({"expected_wait": 75}, "Waiting for the GPU: about 1 min 15 s"),
        (
            {"queue_position": 1, "running": [running()], "reason": "6 GiB of a.ipynb cannot leave the GPU"},
            "Waiting for the GPU: 6 GiB of a.ipynb cannot leave the GPU",
        ),
    ],
)
def test_wait_messages_have_their_texts(status: dict[str, Any], text: str) -> None:
    assert wait_in_progress(status, 5.0).text == text


def test_a_label_is_escaped() -> None:
    assert "<b>" not in wait_in_progress({"running": [running(label="<b>x</b>")]}, 1.0).html
    assert wait_finished(0.3).text == "waited 1 s for the GPU"


def test_wait_messages_have_data_for_front_ends() -> None:
    facts = {"queue_position": 2, "expected_wait": 40.2, "running": [running(label="a.ipynb")]}
    assert wait_in_progress({**facts, "suspended": False}, 5.0).data == {
        "state": "waiting",
        "waited_seconds": 5.0,
        **facts,
    }
    assert wait_suspended("c").data == {"state": "suspended", "client": "c"}
    assert wait_finished(3.25).data == {"state": "ended", "waited_seconds": 3.2}
    assert wait_abandoned(3.0).data == {"state": "interrupted", "waited_seconds": 3.0}
