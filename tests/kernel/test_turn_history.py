"""Tests of the plot of a client's turns and waits, as text and as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from jupyter_gpushare.kernel.client_api import ClientApi
from jupyter_gpushare.kernel.display.history_data import COLUMNS
from jupyter_gpushare.kernel.display.turn_history import History


def entries(*pairs: tuple[float, str]) -> list[dict[str, Any]]:
    return [{"at": at, "client": "k", "what": what} for at, what in pairs]


SOME = entries(
    (100.0, "idle"),
    (110.0, "cell_started"),
    (110.0, "waiting"),
    (120.0, "running"),
    (138.0, "draining"),
    (140.0, "idle"),
    (140.0, "cell_ended"),
)


def test_history_text_has_lanes_and_sums() -> None:
    summary, line, marks, legend = repr(History(SOME, 160.0)).splitlines()
    assert summary == "The last 1 min: ran 20 s in 1 turn, waited 10 s, 1 cell"
    assert line == "·" * 10 + "░" * 10 + "█" * 20 + "·" * 20
    assert marks == " " * 10 + "╵"
    assert "█ running" in legend and "suspended" not in legend


def test_history_compares_the_last_known_cell_with_its_expectation() -> None:
    known = [*SOME[:-1], {**SOME[-1], "gpu_seconds": 44.2, "expected_seconds": 40.0}]
    text = "the last cell that ran before used the GPU for 44 s, and 40 s were expected"
    assert text in History(known, 160.0).summary()
    assert text in History(known, 160.0)._repr_html_()
    assert "expected" not in History(SOME, 160.0).summary()
    memory = [*known[:-1], {**known[-1], "allocated": 3 << 30, "expected_allocated": 1 << 30}]
    assert "it allocated up to 3 GiB, and 1 GiB were expected" in History(memory, 160.0).summary()


def test_turn_held_between_cells_is_one_marked_turn() -> None:
    turn = entries((100.0, "running"), (110.0, "held"), (140.0, "running"), (150.0, "held"), (160.0, "idle"))
    summary, line, _, legend = repr(History(turn, 160.0)).splitlines()
    assert summary == "The last 1 min: ran 20 s in 1 turn, held the GPU for 40 s, waited 0 s, 0 cells"
    assert line == "█" * 10 + "▓" * 30 + "█" * 10 + "▓" * 10
    assert "▓ held" in legend
    assert "</span>held</span>" in History(turn, 160.0)._repr_html_()
    again = entries((100.0, "running"), (110.0, "idle"), (120.0, "running"), (130.0, "idle"))
    assert "in 2 turns" in History(again, 160.0).summary()


def test_short_turns_stay_visible() -> None:
    line = History(entries((0.0, "idle"), (300.0, "running"), (300.001, "idle")), 600.0).columns(COLUMNS)
    assert line.count("running") == 1 and len(line) == COLUMNS


def test_unknown_intervals_are_blank_and_open_intervals_count() -> None:
    history = History(entries((100.0, "running")), 101.0)
    assert history.total("running") == 1.0
    assert history.begin == 91.0  # the plot spans ten seconds at least
    assert set(history.columns(10)[:9]) == {""} and history.columns(10)[9] == "running"


def test_empty_history_has_a_message() -> None:
    assert repr(History([], 5.0)) == "No turns, waits or cells in the last minutes."
    assert "No turns" in History([], 5.0)._repr_html_()


@pytest.mark.parametrize("turns", [1, 5000])
def test_the_plot_is_an_svg_of_bounded_size(turns: int) -> None:
    many = [pair for turn in range(turns) for pair in ((turn * 0.1, "running"), (turn * 0.1 + 0.05, "idle"))]
    page = History(entries(*many, (turns * 0.1, "cell_started")), turns * 0.1 + 1)._repr_html_()
    match = re.search(r"<svg.*</svg>", page)
    assert match
    svg = ElementTree.fromstring(match[0])
    assert (svg.get("role") == "img" and "turns" in str(svg.get("aria-label"))) or turns == 1
    titles = [title.text or "" for title in svg.iter("title")]
    assert titles and titles[0].startswith("running, about ")
    assert len(page) < 200_000 and "<script" not in page and "<style" not in page


def test_all_pages_are_read_without_entries_of_other_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = ClientApi("k", "/nowhere", lambda: "")
    requests = []

    def request(message: dict[str, Any], timeout: float) -> dict[str, Any]:
        requests.append((message["after"], message["client"]))
        first = message["after"] == 0
        other = [{"at": 100.0, "client": "other", "what": "running"}]
        return {
            "now": 160.0,
            "next": 3 if first else 7,
            "more": first,
            "entries": (SOME[:3] + other if first else SOME[3:]),
        }

    monkeypatch.setattr(calls, "request", request)
    assert calls.history().entries == SOME
    assert requests == [(0, "k"), (3, "k")]
