"""Two busy clients never work in each other's turn, by the time stamps that the driver takes."""

from __future__ import annotations

import itertools

import pytest

from .host import Host, eventually, turns

MANY = 20


@pytest.mark.parametrize(
    "how",
    [
        {"launch": 0.002},
        {"launch": 0.0002, "look": 32},
        {"launch": 0.03, "look": 1, "stream": True},
    ],
    ids=["training", "many short launches", "long launches on a stream"],
)
def test_turns_never_overlap(quick: Host, how: dict[str, object]) -> None:
    one, other = quick.program("one"), quick.program("other")
    one.busy(**how)
    other.busy(launch=0.002)
    eventually(lambda: len(turns(quick.executions(one), quick.executions(other))) >= MANY)
    one.stop()
    other.stop()
    assert quick.overlap([one], [other]) == 0
    assert all(client["quanta"] >= MANY // 2 - 1 for client in quick.clients().values())


def test_a_client_of_two_processes_has_its_turn_with_both(quick: Host) -> None:
    first, second, other = quick.program("pair"), quick.program("pair"), quick.program("other")
    for program in (first, second, other):
        program.busy()
    eventually(lambda: len(turns(quick.executions(first, second), quick.executions(other))) >= MANY)
    for program in (first, second, other):
        program.stop()
    assert quick.overlap([first, second], [other]) == 0
    assert quick.overlap([first], [second]) > 0  # they share its turns
    assert {client: len(value["processes"]) for client, value in quick.clients().items()} == {"pair": 2, "other": 1}


def test_a_second_process_joins_the_turn_that_the_first_one_is_in(patient: Host) -> None:
    """Turns are 20 s here, so the second process cannot have waited for a turn of its own."""
    first, other = patient.program("pair"), patient.program("other")
    first.busy()
    other.start_busy()
    eventually(lambda: patient.phase("other") == "waiting")
    second = patient.program("pair")
    second.busy()
    eventually(lambda: patient.overlap([first], [second]) > 0)
    assert patient.phase("pair") == "running"
    assert patient.executions(other) == []
    for program in (first, second):
        program.stop()
    other.result()
    other.stop()
    assert patient.overlap([first, second], [other]) == 0


def test_the_time_stamps_would_tell(quick: Host) -> None:
    """Without the shim the same programs do overlap."""
    one, other = (quick.program(name, GPUSHARE_DISABLE="1") for name in ("one", "other"))
    one.busy()
    other.busy()
    eventually(lambda: quick.overlap([one], [other]) > 0)
    one.stop()
    other.stop()
    assert quick.clients() == {}


def test_three_clients_take_turns_in_order(quick: Host) -> None:
    programs = [quick.program(name) for name in ("a", "b", "c")]
    for program in programs:
        program.busy()
    logs = lambda: [quick.executions(program) for program in programs]  # noqa: E731
    eventually(lambda: len(turns(*logs())) >= MANY)
    for program in programs:
        program.stop()
    order = [number for number, _, _ in turns(*logs())][6:-6]
    assert len({(before, after) for before, after in itertools.pairwise(order)}) == 3  # always the same next
    assert quick.overlap(*([program] for program in programs)) == 0
