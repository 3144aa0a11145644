"""Tests of the agent's table in docs/explanation/turns.md. The name of a test has the number of its row."""

from __future__ import annotations

import pytest

from jupyter_gpushare.agent.rule import BUSY, ENTERED, ENTERED_FIRST, QUIET, REFUSED, TURN_WORDS, check_of
from jupyter_gpushare.wire.page import CLOSING, CONTENDED, IN, LEAVING, MAY, OUT, RELIEVED, STEP

from .rule_driver import MS, OTHER, OWN, TURN, RuleDriver

# --- out


def test_row_1_it_tries_by_a_permit_when_a_thread_waits(process: RuleDriver) -> None:
    process.permit()
    process.given.waiting = 0
    assert "ENTER" not in process.step()
    process.given.waiting = 1
    assert "ENTER" in process.step()
    assert (process.out.turn, process.out.devices, process.gate) == (TURN, 1, "closed")


def test_row_1_a_used_up_epoch_admits_no_more(process: RuleDriver) -> None:
    process.enter_turn(epoch=5)
    process.drain_and_leave(epoch=5, flags=0)
    process.permit(epoch=5)
    assert "ENTER" not in process.step(after=1000)
    process.permit(epoch=6)
    assert "ENTER" in process.step()


def test_row_1_epochs_of_a_new_connection_are_new(process: RuleDriver) -> None:
    process.enter_turn(epoch=5)
    process.drain_and_leave(epoch=5, flags=0)
    process.rule.agent_new_connection(process.agent)
    process.permit(epoch=5)
    assert "ENTER" in process.step()


def test_row_1_a_turn_of_an_earlier_connection_uses_up_no_epoch(process: RuleDriver) -> None:
    process.enter_turn(epoch=7)
    process.rule.agent_new_connection(process.agent)
    process.drain_and_leave(epoch=1, flags=0)
    process.permit(epoch=7)
    process.enter()
    assert process.gate == "open"


def test_row_1_a_deadline_in_the_past_admits_no_more(process: RuleDriver) -> None:
    process.permit(flags=MAY | RELIEVED, deadline=process.now - 1)
    assert "ENTER" not in process.step()


def test_row_1_it_stays_out_until_the_permit_covers_its_own_devices(process: RuleDriver) -> None:
    process.given.own_devices = 5
    process.permit(devices=3)
    assert "ENTER" not in process.step()
    process.permit(epoch=2, devices=7)
    assert "ENTER" in process.step()
    assert process.out.devices == 7


def test_row_2_the_gate_opens_when_it_has_entered(process: RuleDriver) -> None:
    process.permit(epoch=7)
    acts = process.enter()
    assert {"WAKE", "CHANGED"} <= acts
    assert (process.gate, process.phase) == ("open", IN)
    report = process.out.report
    assert (report.turn, report.epoch, report.entered_ns) == (TURN, 7, process.now)
    assert report.check == check_of(report, TURN_WORDS)


@pytest.mark.parametrize(
    "change", [{"flags": 0}, {"turn": OTHER}, {"epoch": 0}, {"flags": MAY | RELIEVED, "deadline": 1}]
)
def test_row_3_the_lock_first_then_the_permit(process: RuleDriver, change: dict[str, int]) -> None:
    process.permit()
    assert "ENTER" in process.step()
    process.permit(**{"epoch": 2, **change})
    assert {"LEAVE", "RING"} <= process.step(ENTERED)
    assert (process.gate, process.phase) == ("closed", OUT)


def test_row_4_refused_it_listens_and_tries_again(process: RuleDriver) -> None:
    process.permit()
    process.enter(REFUSED)
    assert process.out.report.refused_entries == 1
    assert process.out.listen
    assert process.wakes_in == 20
    assert "ENTER" not in process.step(after=1)
    process.given.bell = 1
    assert "ENTER" in process.step()
    process.given.bell = 0
    process.step(REFUSED)
    assert "ENTER" in process.step(after=20)


def test_row_4_useless_rings_are_ignored_for_a_while(process: RuleDriver) -> None:
    process.permit()
    process.enter(REFUSED)
    process.given.bell = 1
    tries = []
    for ms in range(1, 60):
        if "ENTER" in process.step(after=1):
            tries.append(ms)
            process.step(REFUSED)
    assert tries[:32] == list(range(1, 33))
    assert tries[32] == 52, "after 20 ms"


def test_row_4_a_client_of_several_devices_does_not_listen(process: RuleDriver) -> None:
    process.permit(devices=3)
    process.enter(REFUSED)
    assert not process.out.listen


def test_row_5_it_reports_that_a_thread_waits(process: RuleDriver) -> None:
    process.given.waiting = 0
    assert process.step() == set()
    process.given.waiting = 1
    assert process.step() == {"CHANGED"}
    process.given.waiting = 2
    assert process.step() == set()
    process.given.waiting = 0
    assert process.step() == {"CHANGED"}


def test_row_7_a_step_for_a_sibling_that_drains(process: RuleDriver) -> None:
    process.permit(flags=0)
    process.sibling(ms=0)
    process.step()
    assert process.wakes_in == 100
    assert {"ENTER", "JOIN"} <= process.step(after=100)
    assert process.out.turn == TURN
    process.step(ENTERED)
    assert (process.gate, process.phase) == ("step", STEP)
    assert process.out.report.steps == 1


def test_row_7_a_step_enters_on_its_own_devices(process: RuleDriver) -> None:
    """The sibling may use other devices of the client, on which no process of the client is in the turn."""
    process.given.client_devices, process.given.own_devices = 3, 2
    process.permit(flags=0)
    process.sibling(ms=100)
    assert {"ENTER", "JOIN"} <= process.step()
    assert process.out.devices == 2


def test_row_7_a_step_that_is_refused_opens_nothing(process: RuleDriver) -> None:
    process.permit(flags=0)
    process.sibling(ms=100)
    process.enter(REFUSED)
    assert (process.gate, process.phase) == ("closed", OUT)


def test_row_7_a_step_needs_no_unused_epoch(process: RuleDriver) -> None:
    process.enter_turn(epoch=5)
    process.drain_and_leave(epoch=5, flags=0)
    process.permit(epoch=5)
    process.advance(1000)
    process.sibling(ms=200)
    process.enter()
    assert process.gate == "step"


def test_row_7_a_permit_of_another_number_does_not_keep_it_from_steps(process: RuleDriver) -> None:
    """The sibling would drain for ever, because its lock keeps out the process whose call it waits for."""
    process.permit(turn=OTHER)
    process.sibling(turn=TURN, ms=0)
    process.enter(REFUSED)
    assert {"ENTER", "JOIN"} <= process.step(after=100)
    assert process.out.turn == TURN


# --- in


def test_row_9_it_takes_over_another_epoch(process: RuleDriver) -> None:
    process.enter_turn(epoch=1)
    process.permit(epoch=2)
    assert process.step() == {"CHANGED"}
    assert (process.out.report.epoch, process.gate) == (2, "open")


def test_row_9_its_deadline_comes_with_it(process: RuleDriver) -> None:
    process.enter_turn(epoch=1, flags=MAY | RELIEVED, deadline=process.now + 10 * MS)
    process.permit(epoch=2, flags=MAY | RELIEVED, deadline=process.now + 50 * MS)
    process.step()
    assert "CLOSE" not in process.step(after=20)
    assert "CLOSE" in process.step(after=30)


@pytest.mark.parametrize("change", [{"flags": 0}, {"turn": OTHER}])
def test_row_10_withdrawn(process: RuleDriver, change: dict[str, int]) -> None:
    process.enter_turn()
    process.permit(epoch=2, **change)
    assert "CLOSE" in process.step()
    assert (process.gate, process.phase) == ("closed", CLOSING)
    assert process.out.report.closed_ns == process.now


def test_row_10_a_coordinator_that_has_written_nothing_ends_nothing(process: RuleDriver) -> None:
    process.enter_turn(flags=MAY | RELIEVED, deadline=process.now + MS)
    process.permit(epoch=0, turn=0, flags=0)
    assert process.step(after=1000) == set()
    assert process.gate == "open"


def test_row_11_a_turn_ends_at_its_deadline_if_another_client_takes_over(process: RuleDriver) -> None:
    deadline = process.now + 30 * MS
    process.enter_turn(deadline=process.now + 10 * MS)
    assert process.step(after=20) == set()
    process.permit(flags=MAY | RELIEVED, deadline=deadline)
    process.step()
    assert process.wakes_in == 9.85
    assert "CLOSE" in process.step(after=10)


def test_row_11_the_bell_announces_the_end_of_a_turn(process: RuleDriver) -> None:
    """The process of the next client wakes up at the same time."""
    process.enter_turn(flags=MAY | RELIEVED, deadline=process.now + 10 * MS)
    process.step()
    assert process.step(after=9.85) == {"RING"}
    assert process.out.devices == 1
    assert process.wakes_in == pytest.approx(0.15)
    assert process.step() == set(), "once"


def test_row_11_no_client_to_follow_nothing_to_announce(process: RuleDriver) -> None:
    process.enter_turn(deadline=process.now + 10 * MS)
    assert process.step(after=9.9) == set()


def idle(process: RuleDriver) -> set[str]:
    """Do nothing for 20 ms of an idle release of 10 ms."""
    process.given.idle_release_ns = 10 * MS
    process.given.waiting = 0
    acts = process.step()
    for _ in range(4):
        acts |= process.step(polled=QUIET if "POLL" in acts else 0, after=5)
        if process.phase != IN:
            break
    return acts


def test_row_12_idle_and_busy_again(process: RuleDriver) -> None:
    process.enter_turn(flags=MAY | CONTENDED)
    assert {"POLL", "CHANGED"} <= idle(process)
    assert process.out.idle
    process.given.submissions += 1
    assert "CHANGED" in process.step(polled=BUSY)
    assert not process.out.idle


def test_row_12_idleness_matters_only_while_another_client_waits(process: RuleDriver) -> None:
    process.enter_turn()
    assert idle(process) == set()
    assert not process.out.idle


def test_row_12_idle_without_a_coordinator_the_turn_ends(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.enter(ENTERED_FIRST)
    process.given.client_began = process.now
    assert "CLOSE" in idle(process)


# --- closing, steps, leaving


def closing(process: RuleDriver) -> None:
    process.enter_turn(epoch=4)
    process.permit(epoch=4, flags=0)
    assert "CLOSE" in process.step()


def test_row_13_permitted_again(process: RuleDriver) -> None:
    closing(process)
    process.permit(epoch=4)
    assert "WAKE" in process.step(polled=QUIET)
    assert (process.gate, process.phase, process.out.report.closed_ns) == ("open", IN, 0)


def test_row_13_while_a_sibling_drains(process: RuleDriver) -> None:
    closing(process)
    process.sibling()
    process.step(polled=QUIET)
    assert process.phase == LEAVING
    process.permit(epoch=4)
    assert "WAKE" in process.step()
    assert (process.gate, process.phase) == ("open", IN)


def test_row_13_not_beyond_its_deadline(process: RuleDriver) -> None:
    process.enter_turn(flags=MAY | RELIEVED, deadline=process.now + MS)
    process.step(after=1)
    process.step(polled=BUSY)
    assert process.phase == CLOSING


def test_row_14_it_leaves_only_when_the_work_has_finished(process: RuleDriver) -> None:
    closing(process)
    process.given.waiting = 0
    process.step(polled=BUSY)
    for _ in range(3):
        assert process.step(polled=BUSY, after=1000) == set()
    assert process.step() == set(), "an agent that has not polled does not drain"
    assert "DRAINED" in process.step(polled=QUIET)
    assert process.phase == LEAVING


def test_row_15_a_step_for_its_own_thread(process: RuleDriver) -> None:
    closing(process)
    process.step(polled=BUSY)
    process.step(polled=BUSY, after=99)
    assert process.gate == "closed"
    assert "WAKE" in process.step(polled=BUSY, after=1)
    assert (process.gate, process.phase) == ("step", STEP)
    opening = process.out.opening
    process.given.submissions += 1
    assert "CLOSE" in process.step(after=20)
    process.step(polled=BUSY)
    process.step(polled=BUSY, after=80)
    assert (process.gate, process.out.opening > opening) == ("step", True), "a thread passes each step once"


def test_row_16_a_step_waits_for_a_thread_that_has_not_run_yet(process: RuleDriver) -> None:
    """On a host without a free processor the woken thread may run later than the step would end."""
    closing(process)
    process.step(polled=BUSY)
    process.step(polled=BUSY, after=100)
    assert (process.step(after=100), process.gate) == (set(), "step")
    process.given.submissions += 1
    assert "CLOSE" in process.step(after=1)


def test_row_16_a_step_does_not_wait_for_ever(process: RuleDriver) -> None:
    closing(process)
    process.step(polled=BUSY)
    process.step(polled=BUSY, after=100)
    assert "CLOSE" in process.step(after=220)


def test_row_15_whole_slices_follow_steps_in_vain(process: RuleDriver) -> None:
    closing(process)
    lengths, began, before = [], 0, "closed"
    for _ in range(2000):
        process.advance(5)
        process.given.submissions += 1
        process.step(polled=BUSY)
        if process.gate == "open" and before != "open":
            began = process.now
        elif process.gate != "open" and before == "open":
            lengths.append((process.now - began) // MS)
        before = process.gate
    assert lengths[:2] == [50, 100]


def test_row_15_whole_slices_of_siblings_coincide() -> None:
    """Work that waits for a call of the sibling can end while both gates are open."""
    both = [RuleDriver(), RuleDriver()]
    both[1].advance(7)
    for process in both:
        closing(process)
    both[0].advance(7)
    together = single = 0
    for _ in range(2000):
        for process in both:
            process.advance(5)
            process.given.submissions += 1
            process.step(polled=BUSY)
        is_open = [process.gate == "open" for process in both]
        together += all(is_open)
        single += any(is_open) and not all(is_open)
    assert together > 20 > single


def test_row_16_a_sibling_that_leaves_again_and_again_does_not_keep_whole_slices_away(process: RuleDriver) -> None:
    closing(process)
    gates = set()
    for number in range(400):
        process.sibling(closing=1 + number % 2)
        process.advance(20)
        process.given.submissions += 1
        process.step(polled=BUSY)
        gates.add(process.gate)
    assert gates == {"closed", "step", "open"}


def test_row_16_a_step_ends_when_a_sibling_has_left(process: RuleDriver) -> None:
    process.permit(flags=0)
    process.sibling(closing=2, ms=100)
    process.enter()
    process.step()
    assert process.gate == "step"
    process.advance(1)
    process.sibling(closing=1, ms=100)
    assert "CLOSE" in process.step()
    assert (process.gate, process.phase) == ("closed", CLOSING)


def test_row_17_it_leaves_when_its_memory_has_left(process: RuleDriver) -> None:
    closing(process)
    process.given.moving = 1
    process.step(polled=QUIET)
    assert "LEAVE" not in process.step()
    process.given.moving = 0
    assert {"LEAVE", "RING", "CHANGED"} <= process.step(after=3)
    assert (process.out.turn, process.out.devices, process.phase) == (TURN, 1, OUT)
    assert process.out.report.left_ns == process.now


def test_row_17_memory_stays_while_a_sibling_drains(process: RuleDriver) -> None:
    """The sibling may need a call of this process, which would bring the memory back."""
    closing(process)
    process.given.waiting = 0
    process.sibling()
    assert not {"DRAINED", "LEAVE"} & process.step(polled=QUIET)
    assert (process.phase, process.wakes_in) == (LEAVING, 0.2)
    process.advance(1)
    process.sibling(closing=0, turn=0)
    assert "DRAINED" in process.step()
    assert "LEAVE" in process.step()


def test_row_17_memory_stays_for_a_second_at_most(process: RuleDriver) -> None:
    closing(process)
    process.given.waiting = 0
    process.sibling()
    process.step(polled=QUIET)
    assert process.step(after=999) == set()
    assert "DRAINED" in process.step(after=1)


def test_row_15_a_step_for_a_sibling_that_drains(process: RuleDriver) -> None:
    closing(process)
    process.sibling()
    process.step(polled=QUIET)
    assert process.step(after=99) == set()
    assert "WAKE" in process.step(after=1)
    assert (process.gate, process.phase) == ("step", STEP)


def test_row_18_memory_that_takes_long_is_reported(process: RuleDriver) -> None:
    closing(process)
    process.given.moving = 1
    process.step(polled=QUIET)
    process.step()
    assert (process.wakes_in, process.out.evicting) == (20, 0)
    assert "CHANGED" in process.step(after=20)
    assert process.out.evicting


# --- away


def test_row_19_the_last_permit_stands(process: RuleDriver) -> None:
    process.permit(flags=MAY | RELIEVED, deadline=process.now + 10 * MS)
    process.lose_link(100)
    process.enter()
    assert process.gate == "open"
    assert "CLOSE" in process.step(after=10)


def test_row_20_the_grace_wakes_it(process: RuleDriver) -> None:
    process.permit(flags=0)
    process.lose_link(500)
    process.step()
    assert process.wakes_in == 1500
    assert "ENTER" in process.step(after=1500)
    assert (process.out.turn, bool(process.out.without_coordinator)) == (OWN, True)


def test_row_20_always_for_the_last_quantum(process: RuleDriver) -> None:
    process.lose_link(5000)
    assert "BEGIN" in process.enter(ENTERED_FIRST)
    process.given.client_began = process.now
    process.step()
    assert process.wakes_in == 99.85, "to ring the bell"
    process.advance(100)
    process.drain_and_leave()
    process.step()
    assert process.wakes_in == 20, "other clients may have the device first"
    process.given.bell = 1
    assert "ENTER" not in process.step(after=19), "the process ignores its own ring"
    assert not process.out.listen, "a bell wakes one listener"
    assert "ENTER" in process.step(after=1)


def test_row_20_the_quantum_counts_from_the_end_of_a_restore(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.given.missing_bytes = 1000 * MS
    process.enter(ENTERED_FIRST)
    process.given.client_began = process.now
    for _ in range(4):
        process.step(after=100)
        assert (process.gate, process.wakes_in) == ("open", 5)
    process.given.missing_bytes = 0
    process.step()
    assert process.wakes_in == 99.85
    process.given.missing_bytes = 1  # memory that is allocated later
    process.step()
    assert process.wakes_in == 99.85
    assert "CLOSE" in process.step(after=100)


def test_row_20_a_restore_that_does_not_end_extends_the_turn_up_to_a_bound(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.given.missing_bytes = 300 * MS  # bytes, each for a nanosecond
    process.enter(ENTERED_FIRST)
    process.given.client_began = process.now
    process.step(after=399)
    assert process.gate == "open"
    process.advance(1)
    process.drain_and_leave()
    process.given.client_in, process.given.missing_bytes = 1, 0
    assert "ENTER" not in process.step(after=20), "the turn is over for a process that is not in it"


def test_row_20_a_sibling_joins_for_what_is_left(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.given.client_in, process.given.client_began = 1, process.now - 99 * MS
    assert "BEGIN" not in process.enter()
    assert "CLOSE" in process.step(after=1)


def test_row_20_no_sibling_joins_a_turn_that_is_over(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.given.client_in, process.given.client_began = 1, process.now - 100 * MS
    assert "ENTER" not in process.step()
    assert process.wakes_in == 5, "no process rings a bell for it"


def test_row_20_a_turn_of_a_coordinator_ends_by_its_own_beginning(process: RuleDriver) -> None:
    process.enter_turn()
    process.advance(50)
    process.given.client_began = 1
    process.lose_link(5000)
    process.step()
    assert (process.gate, process.wakes_in) == ("open", 49.85)
    assert "CLOSE" in process.step(after=50)


def test_row_21_a_running_turn_goes_on_over_a_new_link(process: RuleDriver) -> None:
    process.lose_link(5000)
    process.enter(ENTERED_FIRST)
    process.given.client_began = process.now
    process.given.away_since = 0
    process.rule.agent_new_connection(process.agent)
    process.step(after=10_000)
    assert (process.gate, process.phase) == ("open", IN)
    process.permit(turn=OWN, epoch=3)
    process.step()
    assert (process.gate, process.out.report.epoch) == ("open", 3)
