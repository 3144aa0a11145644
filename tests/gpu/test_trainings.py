"""Test of two trainings in PyTorch that do not fit on the card together, in turns, against an exclusive training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .card_host import BALLAST, FRAMEWORK_SET, IS_GPU, MODES, WAIT, CardHost, steps

MIN_TURNS = 10  # of each program
MAX_ROUNDS = 40  # a turn may last for several rounds
STEPS = 10  # of each program in a round
TOLERANCE = 2e-2  # of a loss in half precision

_expected: list[float] = []


def expected_losses(host: CardHost) -> list[float]:
    """Return the losses of the training without the shim, from the first call."""
    if not _expected:
        program = host.framework("", "torch_training")
        _expected.extend(steps(program, MAX_ROUNDS * STEPS))
        program.end()
    return _expected


@pytest.mark.parametrize("host", [FRAMEWORK_SET], indirect=True, ids=[""])
@pytest.mark.parametrize("mode", MODES)
def test_two_trainings(host: CardHost, mode: str, record_property: Callable[[str, object], None]) -> None:
    """Each program is the rival of the other one, and each turn begins with the return of its memory."""
    expected = expected_losses(host) if IS_GPU else []
    host.begin(mode)
    names = ("one", "two")
    programs = [host.framework(name, "torch_training", mode) for name in names]
    host.make_memory_short(mode)
    for program in programs:
        program.start(f"program.hold({BALLAST})")
    for program in programs:
        program.result(WAIT)
    losses: list[list[float]] = [[], []]
    for _ in range(MAX_ROUNDS):
        for program in programs:
            program.start(f"[program.step() for _ in range({STEPS})]")
        for program, own in zip(programs, losses, strict=True):
            own += program.result(WAIT)
        if min(host.turns(name) for name in names) >= MIN_TURNS:
            break
    turns = [host.turns(name) for name in names]
    evicted = [host.moved_bytes(name) for name in names]
    record_property("turns", turns)
    record_property("evicted_bytes", evicted)
    assert min(turns) >= MIN_TURNS and min(evicted) > 0
    for program, own in zip(programs, losses, strict=True):
        extremes = program.run("program.ballast_extremes()", WAIT)
        assert program.run("program.is_refused_beyond_the_device()", WAIT)
        if IS_GPU:  # the stand-ins compute no kernels
            assert extremes == [1.0, 1.0]
            assert own == pytest.approx(expected[: len(own)], rel=TOLERANCE)
