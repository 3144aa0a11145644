"""Tests that runs with random permits detect each mutant of the agent rule and of the edge around it.

`test_hammer.py` detects mutants of the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.agent.process import Process
from jupyter_gpushare.agent.rule import ffi

from ..support.mutant_rule import build_mutant
from .test_any_permits import run

EVENTS = 200_000
Patch = Callable[[Any, str, Any], None]


def assert_is_found(rule: Any = None, first_seed: int = 0) -> None:
    events, seed = 0, first_seed
    while events < EVENTS:
        more_events, _, failure = run(seed, rule)
        if failure:
            return
        events, seed = events + more_events, seed + 1
    pytest.fail(f"{seed - first_seed} seeds with {events} events found nothing")


RULE_MUTANTS = {
    "an epoch is never used up": 1,
    "the permit is not read after entering": 2,
    "a process leaves before it has drained": 4,
    "a turn ends at its deadline without RELIEVED": 6,
    "a step without the lock": 8,
}
FIRST_SEEDS = {1: 24}  # by mutant, for those that need a rare order of events


@pytest.mark.parametrize("mutant", RULE_MUTANTS.values(), ids=RULE_MUTANTS)
def test_mutant_of_the_rule_is_detected(mutant: int) -> None:
    assert_is_found(build_mutant(mutant), FIRST_SEEDS.get(mutant, 0))


def mutant_old_page_obeyed(patch: Patch) -> None:
    patch(Process, "new_page", lambda self: None)


def mutant_permit_dropped_with_page(patch: Patch) -> None:
    def new_page(self: Process) -> None:
        real(self)
        self._take_permit(ffi.new("struct gpushare_permit *"))

    real = Process.new_page
    patch(Process, "new_page", new_page)


def mutant_wrong_check_accepted(patch: Patch) -> None:
    patch(Process, "is_whole", lambda self, permit: True)


def mutant_deadline_of_other_epoch(patch: Patch) -> None:
    def take(self: Process, permit: Any) -> None:
        before = self._permit.deadline_ns if permit.epoch > 1 else permit.deadline_ns
        real(self, permit)
        self._permit.deadline_ns = self._in.permit.deadline_ns = before

    real = Process._take_permit
    patch(Process, "_take_permit", take)


EDGE_MUTANTS = [
    mutant_old_page_obeyed,
    mutant_permit_dropped_with_page,
    mutant_wrong_check_accepted,
    mutant_deadline_of_other_epoch,
]


@pytest.mark.parametrize("mutant", EDGE_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_of_the_edge_is_detected(mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch.setattr)
    assert_is_found()
