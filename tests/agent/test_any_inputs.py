"""Test of the agent rule under random inputs: the gate is open only in a turn that the process has entered."""

from __future__ import annotations

from random import Random

from jupyter_gpushare.agent.rule import BUSY, ENTERED, ENTERED_FIRST, NOT_TRIED, QUIET, REFUSED
from jupyter_gpushare.wire.page import CLOSING, IN, LEAVING, OUT, STEP

from ..support import tier
from .rule_driver import MS, RuleDriver

STEPS = tier.strength(100_000, 1_000_000)
CHANGE_PROBABILITY = 0.1


def change(process: RuleDriver, random: Random) -> None:
    """Change some inputs."""
    given = process.given
    process.advance(random.choice((0, 0.01, 1, 5, 20, 100, 3000)))
    if random.random() < CHANGE_PROBABILITY:
        deadline = random.choice((0, 0, process.now, process.now + 10 * MS, random.getrandbits(64)))
        turn = random.choice((0, 1 << 40, 1 << 41, random.getrandbits(64)))
        process.permit(random.randrange(4), turn, random.randrange(8), deadline, random.getrandbits(3))
    if random.random() < CHANGE_PROBABILITY:
        given.waiting = random.randrange(3)
        given.moving, given.bell, given.client_in = (random.randrange(2) for _ in range(3))
        given.submissions += random.randrange(2)
        given.training_steps += random.randrange(3)
        given.boundary_ns = random.choice((0, process.now, random.getrandbits(64)))
        given.missing_bytes = random.choice((0, 50 * MS, random.getrandbits(64)))
        given.idle_release_ns = random.choice((0, 10 * MS))
        process.sibling(random.randrange(3), random.choice((0, 1 << 40, 1 << 42)), random.choice((0, 30, 500)))
        given.client_began = random.choice((0, process.now, process.now - 50 * MS))
    if random.random() < CHANGE_PROBABILITY / 2:
        given.away_since = random.choice((0, 0, process.now, process.now - 3000 * MS))
    if random.random() < CHANGE_PROBABILITY / 10:
        process.rule.agent_new_connection(process.agent)


def test_the_gate_is_open_only_in_a_turn() -> None:
    random, process = Random(1), RuleDriver()
    entered, turn, tried, phases = False, 0, NOT_TRIED, set()
    for number in range(STEPS):
        change(process, random)
        before = process.phase
        acts = process.step(tried, random.choice((0, BUSY, BUSY, QUIET)))
        tried = NOT_TRIED
        what = f"step {number}: {acts}, phase {before} -> {process.phase}, gate {process.gate}"
        phases.add(process.phase)
        if "LEAVE" in acts:
            assert entered and process.out.turn == turn, what
            entered = False
        if "ENTER" in acts:
            assert not entered and process.gate == "closed", what
            tried, turn = random.choice((REFUSED, ENTERED, ENTERED_FIRST)), process.out.turn
            entered = tried != REFUSED
        assert process.gate == "closed" or entered, what
        assert (process.gate != "closed") == (process.phase in (IN, STEP)), what
        assert process.phase == OUT or process.out.report.turn == turn, what
        assert process.phase != LEAVING or before in (CLOSING, LEAVING), what
    assert phases == {OUT, IN, CLOSING, STEP, LEAVING}, "all phases occur"
