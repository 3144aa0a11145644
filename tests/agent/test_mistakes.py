"""The simulation under any permits finds mistakes that are put in on purpose; `test_hammer.py` those of the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.agent.process import Process
from jupyter_gpushare.agent.rule import ffi

from ..support.rule import mistaken
from .test_any_permits import run

EVENTS = 200_000
Patch = Callable[[Any, str, Any], None]


def assert_is_found(rule: Any = None, first_seed: int = 0) -> None:
    events, seed = 0, first_seed
    while events < EVENTS:
        found, _, wrong = run(seed, rule)
        if wrong:
            return
        events, seed = events + found, seed + 1
    pytest.fail(f"{seed - first_seed} seeds with {events} events found nothing")


PLANTED = {
    "an epoch is never used up": 1,
    "the permit is not read after entering": 2,
    "a process leaves before it has drained": 4,
    "a turn ends at its deadline without RELIEVED": 6,
    "a step without the lock": 8,
}
FIRST_SEEDS = {1: 24}  # by mistake: some need a rare order of events


@pytest.mark.parametrize("mistake", PLANTED.values(), ids=PLANTED)
def test_in_the_rule(mistake: int) -> None:
    assert_is_found(mistaken(mistake), FIRST_SEEDS.get(mistake, 0))


def an_old_page_is_obeyed(patch: Patch) -> None:
    patch(Process, "new_page", lambda self: None)


def the_permit_is_dropped_with_the_page(patch: Patch) -> None:
    def new_page(self: Process) -> None:
        real(self)
        self._take_permit(ffi.new("struct gpushare_permit *"))

    real = Process.new_page
    patch(Process, "new_page", new_page)


def a_wrong_check_is_accepted(patch: Patch) -> None:
    patch(Process, "is_whole", lambda self, permit: True)


def the_deadline_is_that_of_another_epoch(patch: Patch) -> None:
    def take(self: Process, permit: Any) -> None:
        before = self._permit.deadline_ns if permit.epoch > 1 else permit.deadline_ns
        real(self, permit)
        self._permit.deadline_ns = self._in.permit.deadline_ns = before

    real = Process._take_permit
    patch(Process, "_take_permit", take)


IN_THE_EDGE = [
    an_old_page_is_obeyed,
    the_permit_is_dropped_with_the_page,
    a_wrong_check_is_accepted,
    the_deadline_is_that_of_another_epoch,
]


@pytest.mark.parametrize("mistake", IN_THE_EDGE, ids=lambda mistake: mistake.__name__)
def test_in_the_edge(mistake: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch.setattr)
    assert_is_found()
