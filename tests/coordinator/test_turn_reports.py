"""Tests of the events that the coordinator derives from two samples of a process's page."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_gpushare.agent.pages import create_memfd
from jupyter_gpushare.coordinator.clients import page_events
from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.core.base.device_info import ReportedTurn
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.wire.page import CLOSING, FIRST_TURN, IN, LEAVING, OUT, STEP, Page, Turn

S = 10**9
ONE, TWO = FIRST_TURN + 1, FIRST_TURN + 2
RAN = Turn(ONE, entered_ns=11 * S, closed_ns=12 * S, left_ns=13 * S, epoch=1)


class PageReader:
    """Page that is read once a second from second 10 on."""

    def __init__(self, turn: Turn | None = None) -> None:
        self.page = Page(create_memfd("gpushare_page"))
        if turn:
            self.page.write_turn(turn)
        hello: Any = SimpleNamespace(devices=[SimpleNamespace(uuid="GPU-1")], hibernated=0)
        self.handle = ProcessHandle(1, cast(Any, SimpleNamespace(send=lambda line: None)), self.page, hello)
        self.now, self.is_stopped = 10.0, False
        self.process: Any = SimpleNamespace(is_waiting_at_gate=False)
        self.reported = page_events.turn_at_join(self.handle, self.now)

    def read(self, turn: Turn | None = None) -> list[ev.Event] | None:
        if turn:
            self.page.write_turn(turn)
        self.now += 1.0
        events = page_events.read_events(cast(Any, self), self.handle, self.process, self.now)
        return None if events is None else list(events)


@pytest.fixture
def reader() -> Iterator[PageReader]:
    made = PageReader()
    yield made
    made.page.close()


def test_a_turn_step_by_step(reader: PageReader) -> None:
    assert reader.read(Turn(ONE, entered_ns=int(10.5 * S), epoch=1, phase=IN)) == [ev.TurnEntered(1, ONE, 10.5)]
    assert reader.read() == []
    reader.page.report.idle = 1
    assert reader.read() == [ev.ProcessIdle(1)]
    reader.page.report.idle = 0
    assert reader.read() == [ev.ProcessBusy(1)]
    closing = Turn(ONE, entered_ns=int(10.5 * S), closed_ns=int(14.5 * S), epoch=1, phase=CLOSING)
    assert reader.read(closing) == [ev.GateClosed(1, ONE, 14.5)]
    assert reader.read(closing._replace(phase=STEP)) == []
    reader.page.report.evicting = 1
    assert reader.read(closing._replace(phase=LEAVING)) == [ev.EvictionStarted(1)]
    assert reader.read(closing._replace(phase=OUT, left_ns=18 * S)) == [ev.TurnLeft(1, ONE)]
    reader.page.report.restored += 1
    assert reader.read() == [ev.RestoreFinished(1)]


def test_a_restore_belongs_to_the_turn_that_has_ended_since(reader: PageReader) -> None:
    """In another order, a turn that ends before its memory is back would never count.

    The next turn would then be as short.
    """
    reader.page.report.restored += 1
    assert reader.read(RAN) == [
        ev.TurnEntered(1, ONE, 11.0),
        ev.GateClosed(1, ONE, 11.0),
        ev.RestoreFinished(1),
        ev.TurnLeft(1, ONE),
    ]
    following = Turn(TWO, entered_ns=int(11.5 * S), epoch=2, phase=IN)
    reader.page.report.restored += 1
    assert reader.read(following) == [ev.TurnEntered(1, TWO, 11.5), ev.RestoreFinished(1)]
    reader.page.report.restored += 1
    assert reader.read(following._replace(phase=OUT, left_ns=13 * S)) == [ev.RestoreFinished(1), ev.TurnLeft(1, TWO)]


def test_a_turn_that_was_missed_is_reported_whole(reader: PageReader) -> None:
    reader.now = 12.5
    assert reader.read(RAN) == [ev.TurnEntered(1, ONE, 11.0), ev.GateClosed(1, ONE, 12.0), ev.TurnLeft(1, ONE)]
    assert reader.read() == []


def test_another_turn_since_the_last_report_ends_the_one_before(reader: PageReader) -> None:
    reader.read(RAN._replace(phase=IN, closed_ns=0, left_ns=0))
    reader.page.report.idle = 1
    following = Turn(TWO, entered_ns=int(11.5 * S), epoch=2, phase=IN)
    assert reader.read(following) == [ev.TurnLeft(1, ONE), ev.TurnEntered(1, TWO, 11.5), ev.ProcessIdle(1)]
    again = following._replace(entered_ns=int(12.5 * S), epoch=3)
    assert reader.read(again) == [ev.TurnLeft(1, TWO), ev.TurnEntered(1, TWO, 12.5), ev.ProcessIdle(1)]


def test_reopened_gate_is_reported(reader: PageReader) -> None:
    closing = RAN._replace(phase=CLOSING, left_ns=0)
    reader.read(closing)
    assert reader.read(closing._replace(phase=IN, closed_ns=0)) == [ev.TurnEntered(1, ONE, 11.0)]


@pytest.mark.parametrize("claimed", [0, 1, (1 << 64) - 1])
def test_event_times_are_between_two_reports(reader: PageReader, claimed: int) -> None:
    (entered,) = reader.read(Turn(ONE, entered_ns=claimed, epoch=1, phase=IN)) or []
    assert isinstance(entered, ev.TurnEntered) and entered.at == min(max(claimed / S, 10.0), 11.0)


@pytest.mark.parametrize("number", [0, 1, FIRST_TURN - 1])
def test_invalid_turn_number_is_ignored(reader: PageReader, number: int) -> None:
    assert reader.read(Turn(number, entered_ns=S, epoch=1, phase=IN)) == []


def test_torn_report_is_ignored(reader: PageReader) -> None:
    reader.page.write_turn(RAN)
    reader.page.report.turn.epoch += 1
    assert reader.read() is None
    assert reader.read(RAN)


def test_threads_at_the_gate(reader: PageReader) -> None:
    reader.page.report.waiting = 2
    assert reader.read() == [ev.GateWaitStarted(1)]
    reader.process.is_waiting_at_gate = True
    assert reader.read() == []
    reader.page.report.waiting = 0
    assert reader.read() == [ev.GateWaitEnded(1)]
    reader.process.is_waiting_at_gate = False
    reader.page.report.waiting, reader.is_stopped = 1, True
    assert reader.read() == [], "a stopped client counts as waiting"
    reader.is_stopped = False
    assert reader.read() == [ev.GateWaitStarted(1)]
    # A thread that passes the open gate is no waiting thread.
    assert reader.read(Turn(ONE, entered_ns=15 * S, epoch=1, phase=IN)) == [ev.TurnEntered(1, ONE, 15.0)]


@pytest.mark.parametrize(
    ("turn", "reported"),
    [
        (None, None),
        (RAN, None),
        (RAN._replace(phase=IN), ReportedTurn(ONE, True)),
        (RAN._replace(phase=LEAVING), ReportedTurn(ONE, False)),
    ],
)
def test_turn_at_join_causes_no_event(turn: Turn | None, reported: ReportedTurn | None) -> None:
    reader = PageReader(turn)
    assert reader.reported == reported
    assert reader.read() == []
    reader.page.close()
