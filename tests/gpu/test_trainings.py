"""Two trainings in PyTorch that do not fit on the card together, in turns, and the same training alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .card_host import IS_GPU, MODES, WAIT, WORKING_SET, CardHost, steps

ROUNDS = 12  # in each of which both programs have a turn
STEPS = 10  # of a round
MIN_TURNS = 10
TOLERANCE = 2e-2  # of a loss in half precision

_alone: list[float] = []


def losses_alone(host: CardHost) -> list[float]:
    """Return the losses of the training without the shim, from the first call."""
    if not _alone:
        program = host.framework("", "torch_training")
        _alone.extend(steps(program, ROUNDS * STEPS))
        program.end()
    return _alone


@pytest.mark.parametrize("mode", MODES)
def test_two_trainings(host: CardHost, mode: str, record_property: Callable[[str, object], None]) -> None:
    """Each program is the rival of the other one, and each turn begins with the return of its memory."""
    expected = losses_alone(host)
    host.begin(mode)
    names = ("one", "two")
    programs = [host.framework(name, "torch_training", mode) for name in names]
    host.make_memory_short(mode)
    for program in programs:
        program.start(f"program.hold({WORKING_SET})")
    for program in programs:
        program.result(WAIT)
    losses: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for program in programs:
            program.start(f"[program.step() for _ in range({STEPS})]")
        for program, own in zip(programs, losses, strict=True):
            own += program.result(WAIT)
    turns = [host.turns(name) for name in names]
    evicted = [host.moved_bytes(name) for name in names]
    record_property("turns", turns)
    record_property("evicted_bytes", evicted)
    assert min(turns) >= MIN_TURNS and min(evicted) > 0
    for program, own in zip(programs, losses, strict=True):
        if IS_GPU:
            assert own == pytest.approx(expected, rel=TOLERANCE)
        assert program.run("program.ballast_mean()", WAIT) == 1.0
        assert program.run("program.is_refused_beyond_the_device()", WAIT)
