"""The simulation finds planted mistakes of the coordinator; `tests/agent` finds those of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.coordinator.clients.client_runtime import ClientRuntime
from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.coordinator.engine import page_sync
from jupyter_gpushare.coordinator.rpc.protocol_sessions import ProtocolSessions
from jupyter_gpushare.core.grants import Grants
from jupyter_gpushare.wire.page import Page

from .episode import Episode

EVENTS = 250_000

Patch = Callable[[Any, str, Any], None]


def no_permit_is_withdrawn(patch: Patch) -> None:
    real = ClientRuntime.set_permit
    patch(ClientRuntime, "set_permit", lambda self, permit: real(self, permit) if permit.may else None)


def a_number_means_two_turns(patch: Patch) -> None:
    patch(Grants, "next_turn", lambda self: 1 << 40)


def processes_are_not_rung(patch: Patch) -> None:
    patch(ProcessHandle, "ring", lambda self: None)


def the_gone_are_not_noticed(patch: Patch) -> None:
    patch(ProtocolSessions, "close", lambda self, peer: self._sessions.pop(peer, None))


def pages_are_not_closed(patch: Patch) -> None:
    patch(Page, "close", lambda self: None)


def refused_though_memory_can_leave(patch: Patch) -> None:
    patch(page_sync, "can_come", lambda device, client, ahead: False)


MISTAKES = [
    no_permit_is_withdrawn,
    a_number_means_two_turns,
    processes_are_not_rung,
    the_gone_are_not_noticed,
    pages_are_not_closed,
    refused_though_memory_can_leave,
]
FIRST_SEEDS = {refused_though_memory_can_leave: 7}  # that need a host of a kind that is rarer


@pytest.mark.slow
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_it_is_found(mistake: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch.setattr)
    events = 0
    seed = FIRST_SEEDS.get(mistake, 0)
    first = seed
    while events < EVENTS:
        outcome = Episode(seed).run()
        if outcome.failure:
            assert f"again: python -m tests.faults --seed {seed}" in outcome.failure
            return
        events += outcome.events
        seed += 1
    pytest.fail(f"{seed - first} seeds with {events} events found nothing")
