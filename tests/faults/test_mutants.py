"""The simulation finds what it is for: each of these mistakes, put in on purpose, in a part of the short form."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator import levels
from jupyter_gpushare.coordinator.daemon import Daemon
from jupyter_gpushare.coordinator.heartbeat import Heartbeat
from jupyter_gpushare.coordinator.locks import Locks
from jupyter_gpushare.coordinator.members import Member
from jupyter_gpushare.coordinator.orders import Orders
from jupyter_gpushare.coordinator.sessions import Sessions
from jupyter_gpushare.core.reports import Reports
from jupyter_gpushare.wire.page import Page

from .episode import Episode

EVENTS = 250_000
# What some of them need to be seen; they would be with all faults together, only later.
KINDS = {
    "any_epoch_will_do": ("talk",),
    "drained_when_one_has": ("stop",),
    "unlocked_whoever_runs": ("disconnect",),
    "what_was_not_said_is_not_seen": ("talk",),
    "who_is_passed_over_stays_named": ("stop",),
}
# A seed that finds it soon. It means other events when the scheduler changes, so others are tried after it.
FIRST = {"who_is_passed_over_stays_named": 66}

Patch = Callable[[Any, str, Any], None]


@pytest.fixture(autouse=True)
def lock_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUSHARE_LOCK_DIR", str(tmp_path))


def drained_when_one_has(patch: Patch) -> None:
    def hear(self: Reports, event: Any, now: float) -> None:
        process = self._known.process(event.process)
        for other in process.client.processes.values() if event.epoch == process.epoch else ():
            other.drained = True
        real(self, event, now)

    real = Reports._drained
    patch(Reports, "_drained", hear)


def any_epoch_will_do(patch: Patch) -> None:
    def hear(self: Reports, event: Any, now: float) -> None:
        real(self, dataclasses.replace(event, epoch=self._known.process(event.process).epoch), now)

    real = Reports._drained
    patch(Reports, "_drained", hear)


def nothing_is_unlocked(patch: Patch) -> None:
    patch(Locks, "release", lambda self, devices: self._held.difference_update(devices))


def unlocked_whoever_runs(patch: Patch) -> None:
    patch(Member, "unlock", lambda self, devices: self.locks.release(devices) or True)


def granted_without_the_lock(patch: Patch) -> None:
    patch(Locks, "acquire", lambda self, devices, *how, **more: self._held.update(devices) or True)


def the_gone_are_not_noticed(patch: Patch) -> None:
    patch(Sessions, "end", lambda self, peer: self._sessions.pop(peer, None))


def pages_are_not_closed(patch: Patch) -> None:
    patch(Page, "close", lambda self: None)


def deadlines_are_not_met(patch: Patch) -> None:
    patch(Daemon, "_arm", lambda self: None)


def what_was_not_said_is_not_seen(patch: Patch) -> None:
    patch(Heartbeat, "_overheard", lambda self, port: None)


def who_is_passed_over_stays_named(patch: Patch) -> None:
    def refuse(self: Orders, member: Member, command: Any) -> None:
        carried = [(port, port.page.orders.carry) for port in member.processes.values()]
        real(self, member, command)
        for port, epoch in carried:
            port.page.orders.carry = epoch

    real = Orders._refuse
    patch(Orders, "_refuse", refuse)


def refused_though_memory_can_leave(patch: Patch) -> None:
    patch(levels, "can_come", lambda device, client, ahead: False)


MISTAKES = [
    drained_when_one_has,
    any_epoch_will_do,
    nothing_is_unlocked,
    unlocked_whoever_runs,
    granted_without_the_lock,
    the_gone_are_not_noticed,
    pages_are_not_closed,
    deadlines_are_not_met,
    what_was_not_said_is_not_seen,
    who_is_passed_over_stays_named,
    refused_though_memory_can_leave,
]


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_it_is_found(mistake: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch.setattr)
    events = 0
    first = seed = FIRST.get(mistake.__name__, 0)
    while events < EVENTS:
        outcome = Episode(seed, KINDS.get(mistake.__name__)).run()
        if outcome.failure:
            assert f"again: python -m tests.faults --seed {seed}" in outcome.failure
            return
        events += outcome.events
        seed += 1
    pytest.fail(f"{seed - first} seeds with {events} events found nothing")
