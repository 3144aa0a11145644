"""Two busy clients never work in each other's turn, by the time stamps that the driver takes."""

from __future__ import annotations

import pytest

from jupyter_gpushare.wire.page import IN

from .host import Host, eventually, stop_all, turns

MANY = 20


@pytest.mark.parametrize(
    "how",
    [{"launch": 0.002}, {"launch": 0.0002, "look": 32}, {"launch": 0.03, "look": 1, "stream": True}],
    ids=["training", "many short launches", "long launches on a stream"],
)
def test_turns_never_overlap(quick: Host, how: dict[str, object]) -> None:
    one, other = quick.program("one"), quick.program("other")
    one.busy(**how)
    other.busy(launch=0.002)
    eventually(lambda: len(turns(quick.executions(one), quick.executions(other))) >= MANY)
    stop_all(one, other)
    assert quick.overlap([one], [other]) == 0
    assert all(client["quanta"] >= MANY // 2 - 1 for client in quick.clients().values())


def test_a_second_process_joins_the_turn_that_the_first_one_is_in(patient: Host) -> None:
    """Turns are 20 s here, so the second process cannot have waited for a turn of its own."""
    first, other = patient.program("pair"), patient.program("other")
    first.busy()
    other.start_busy()
    eventually(lambda: patient.phase("other") == "waiting")
    second = patient.program("pair")
    second.busy()
    eventually(lambda: patient.overlap([first], [second]) > 0)
    pages = [patient.page(program) for program in (first, second)]
    assert [page["turn_phase"] for page in pages] == [IN, IN]
    assert pages[0]["turn_turn"] == pages[1]["turn_turn"]
    assert patient.clients()["pair"]["quanta"] == 1
    assert patient.executions(other) == []
    stop_all(first, second)
    other.result()
    other.stop()
    assert patient.overlap([first, second], [other]) == 0


def test_the_time_stamps_would_tell(quick: Host) -> None:
    """Without the shim the same programs do overlap."""
    one, other = (quick.program(name, GPUSHARE_DISABLE="1") for name in ("one", "other"))
    one.busy()
    other.busy()
    eventually(lambda: quick.overlap([one], [other]) > 0)
    stop_all(one, other)
    assert quick.clients() == {}
