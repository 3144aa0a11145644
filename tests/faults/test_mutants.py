"""Tests that the episodes detect each mutant of the coordinator; `tests/agent` has the mutants of a process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.coordinator.clients.client_runtime import ClientRuntime
from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.coordinator.engine import page_sync
from jupyter_gpushare.coordinator.rpc.protocol_sessions import ProtocolSessions
from jupyter_gpushare.core.state.model import Client
from jupyter_gpushare.core.turns import turn_scheduler
from jupyter_gpushare.core.turns.grant_table import GrantTable
from jupyter_gpushare.wire.page import Page

from ..support import tier
from .episode import Episode

MAX_EVENTS = 250_000

Patch = Callable[[Any, str, Any], None]


def mutant_permit_never_withdrawn(patch: Patch) -> None:
    real = ClientRuntime.set_permit
    patch(ClientRuntime, "set_permit", lambda self, permit: real(self, permit) if permit.may else None)


def mutant_turn_number_reused(patch: Patch) -> None:
    patch(GrantTable, "new_turn_number", lambda self: 1 << 40)


def mutant_doorbell_missing(patch: Patch) -> None:
    patch(ProcessHandle, "ring", lambda self: None)


def mutant_disconnect_missed(patch: Patch) -> None:
    patch(ProtocolSessions, "close", lambda self, peer: self._sessions.pop(peer, None))


def mutant_pages_never_closed(patch: Patch) -> None:
    patch(Page, "close", lambda self: None)


def mutant_movable_memory_ignored(patch: Patch) -> None:
    patch(page_sync, "can_make_resident", lambda device, client, ahead, counts_unbacked: False)


def mutant_wait_for_room_never_ends(patch: Patch) -> None:
    real = turn_scheduler.is_short_of_room
    patch(turn_scheduler, "is_short_of_room", lambda device, client: client.is_short_of_room or real(device, client))


def mutant_request_of_an_ending_turn_never_refused(patch: Patch) -> None:
    real = page_sync.PageSync._has_waited_in_vain

    def never(self: page_sync.PageSync, handle: ProcessHandle, client: Client) -> bool:
        return not (client.grant and client.grant.is_draining) and real(self, handle, client)

    patch(page_sync.PageSync, "_has_waited_in_vain", never)


MUTANTS = [
    mutant_permit_never_withdrawn,
    mutant_turn_number_reused,
    mutant_doorbell_missing,
    mutant_disconnect_missed,
    mutant_pages_never_closed,
    mutant_movable_memory_ignored,
    mutant_wait_for_room_never_ends,
    *tier.nightly([mutant_request_of_an_ending_turn_never_refused]),  # its first failing episode takes 10 s
]
FIRST_SEEDS = {
    mutant_movable_memory_ignored: 7,
    mutant_wait_for_room_never_ends: 111,
    mutant_request_of_an_ending_turn_never_refused: 128,
}  # mutants that need a rare kind of host


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_mutant_is_detected_within_the_event_limit(
    mutant: Callable[[Patch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch.setattr)
    events = 0
    seed = FIRST_SEEDS.get(mutant, 0)
    first = seed
    while events < MAX_EVENTS:
        outcome = Episode(seed).run()
        if outcome.failure:
            assert f"again: python -m tests.faults --seed {seed}" in outcome.failure
            return
        events += outcome.events
        seed += 1
    pytest.fail(f"{seed - first} seeds with {events} events found nothing")
