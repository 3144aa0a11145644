"""Tests of row 23 in docs/explanation/turns.md, and of what follows it: turns end at training steps.

A turn has 100 ms, and its training steps take 10 ms unless a test has others.
"""

from __future__ import annotations

import pytest

from jupyter_gpushare.agent.rule import ENTERED_FIRST, QUIET
from jupyter_gpushare.wire.page import CLOSING, CONTENDED, MAY, RELIEVED

from .rule_driver import MS, NEVER, RuleDriver


def train(process: RuleDriver, ms: float, step_ms: float = 10) -> float:
    """Take steps for `ms` milliseconds, or until the gate closes, and return the milliseconds that passed."""
    begin = process.now
    end = begin + ms * MS
    while process.now < end and process.gate == "open":
        next_step = process.now + step_ms * MS
        while process.wakes_in < (next_step - process.now) / MS and process.gate == "open":
            process.step(after=process.wakes_in)
        if process.gate == "open":
            process.advance((next_step - process.now) / MS)
            process.given.training_steps += 1
            if process.now >= process.out.boundary_from:
                process.given.boundary_ns = process.now
                process.step()
    return (process.now - begin) / MS


def begin_training(process: RuleDriver, flags: int = MAY | RELIEVED, turn_ms: float = 100) -> None:
    process.given.training_steps = 1000  # of earlier turns
    process.enter_turn(flags=flags, deadline=process.now + int(turn_ms * MS))
    process.step()


def test_row_23_a_turn_ends_at_a_training_step_before_its_deadline(process: RuleDriver) -> None:
    begin_training(process)
    assert train(process, 200, step_ms=9) == 90, "a step later it would be 99 ms, and 88.75 ms is too early"
    assert (process.gate, process.phase) == ("closed", CLOSING)
    assert process.out.report.closed_ns == process.now
    assert process.out.boundary_from == NEVER


@pytest.mark.parametrize("step_ms", [0.5, 1, 3, 7, 10, 13, 24, 30, 45, 80, 99, 101, 250])
def test_row_23_a_turn_is_never_longer_and_loses_two_steps_or_a_quarter_at_most(
    process: RuleDriver, step_ms: float
) -> None:
    begin_training(process)
    took = train(process, 1000, step_ms)
    assert max(100 - 2.5 * step_ms, 75) <= took <= 100
    if step_ms < 20:
        assert took % step_ms == pytest.approx(0, abs=1e-6), "a step has ended"


@pytest.mark.parametrize("flags", [MAY, MAY | CONTENDED])
def test_row_23_no_other_client_follows(process: RuleDriver, flags: int) -> None:
    begin_training(process, flags)
    assert train(process, 500) == 500


def test_row_23_a_program_that_marks_no_steps_is_not_woken_for_them(process: RuleDriver) -> None:
    process.enter_turn(flags=MAY | RELIEVED, deadline=process.now + 100 * MS)
    process.step()
    assert process.wakes_in == 99.85
    assert process.out.boundary_from == NEVER


def test_row_23_a_step_of_an_earlier_turn_ends_nothing(process: RuleDriver) -> None:
    begin_training(process)
    process.given.boundary_ns = process.now
    assert "CLOSE" not in process.step(after=99)


def test_row_23_holds_without_a_coordinator(process: RuleDriver) -> None:
    process.given.training_steps = 1
    process.lose_link(5000)
    process.given.client_began = process.now
    assert "ENTER" in process.step()
    process.step(ENTERED_FIRST)
    process.step()
    assert train(process, 500, step_ms=9) == 90
    assert "DRAINED" in process.step(polled=QUIET)


def test_row_13_after_a_training_step_needs_another_permission(process: RuleDriver) -> None:
    begin_training(process)
    train(process, 200)
    assert process.gate == "closed"
    process.step()
    assert process.gate == "closed", "the turn is over, though its deadline has not come"
    process.permit(epoch=2, flags=MAY | RELIEVED, deadline=process.now + 100 * MS)
    process.step()
    assert process.gate == "open"


def test_row_13_after_a_training_step_it_goes_on_if_no_client_follows(process: RuleDriver) -> None:
    begin_training(process)
    train(process, 200)
    process.permit(flags=MAY)
    process.step()
    assert process.gate == "open"
