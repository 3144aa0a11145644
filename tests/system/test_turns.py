"""Tests of turns of busy clients by the driver's time stamps: no overlap, and two processes in one turn."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire.page import IN

from .system_host import MOST, SystemHost, stop_all, turn_intervals, wait_until

MIN_TURNS = 20


@pytest.mark.parametrize(
    "how",
    [{"launch": 0.002}, {"launch": 0.0002, "sync_every": 32}, {"launch": 0.03, "sync_every": 1, "stream": True}],
    ids=["training", "many short launches", "long launches on a stream"],
)
def test_turns_never_overlap(short_quantum_host: SystemHost, how: dict[str, object]) -> None:
    one, other = (short_quantum_host.program(name, part=MOST) for name in ("one", "other"))
    one.busy(**how)
    other.busy(launch=0.002)
    wait_until(
        lambda: len(turn_intervals(short_quantum_host.launches(one), short_quantum_host.launches(other))) >= MIN_TURNS
    )
    stop_all(one, other)
    assert short_quantum_host.overlap([one], [other]) == 0
    assert all(client["turn_count"] >= MIN_TURNS // 2 - 1 for client in short_quantum_host.clients().values())


def test_a_second_process_joins_the_turn_of_the_first_one(fcfs_host: SystemHost) -> None:
    """Turns take an hour here, so the second process cannot have waited for a turn of its own."""
    first, other = (fcfs_host.program(name, part=MOST) for name in ("pair", "other"))
    first.busy()
    other.start_busy()
    wait_until(lambda: fcfs_host.phase("other") == "waiting")
    second = fcfs_host.program("pair")
    second.busy()
    wait_until(lambda: fcfs_host.overlap([first], [second]) > 0)
    pages = [fcfs_host.page(program) for program in (first, second)]
    assert [page["turn_phase"] for page in pages] == [IN, IN]
    assert pages[0]["turn_turn"] == pages[1]["turn_turn"]
    assert fcfs_host.clients()["pair"]["turn_count"] == 1
    assert fcfs_host.launches(other) == []
    stop_all(first, second)
    other.result()
    other.stop()
    assert fcfs_host.overlap([first, second], [other]) == 0


def test_unscheduled_programs_overlap_in_the_execution_log(short_quantum_host: SystemHost) -> None:
    """The same programs overlap without the shim."""
    one, other = (short_quantum_host.program(name, GPUSHARE_DISABLE="1") for name in ("one", "other"))
    one.busy()
    other.busy()
    wait_until(lambda: short_quantum_host.overlap([one], [other]) > 0)
    stop_all(one, other)
    assert short_quantum_host.clients() == {}
