"""Tests of moves and hibernation under random faults.

The driver moves, hibernates and restores processes, and refuses some calls. Coordinators and processes are killed,
stopped and disconnected meanwhile, as in every storm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.core.handlers import client_moves
from jupyter_gpushare.core.handlers.client_moves import ClientMoves

from .moves import EpisodeWithMoves

SEEDS = (9, 11)  # of hosts with several devices, whose clients move, hibernate and return

Patch = Callable[[Any, str, Any], None]


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(40, 140))
def test_invariants_hold_on_any_host(seed: int) -> None:
    outcome = EpisodeWithMoves(seed).run()
    assert not outcome.failure, outcome.failure


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_while_clients_move_and_hibernate(seed: int) -> None:
    episode = EpisodeWithMoves(seed)
    outcome = episode.run()
    assert not outcome.failure, outcome.failure
    assert {"moved", "hibernated", "returned", "refused"} <= set(episode.host.moves)


def mutant_end_of_a_move_missed(patch: Patch) -> None:
    patch(ClientMoves, "_on_move_ended", lambda self, event, now: None)


def mutant_hibernated_client_never_returns(patch: Patch) -> None:
    patch(client_moves, "_wants_return", lambda client: False)


def mutant_next_coordinator_misses_hibernation(patch: Patch) -> None:
    real = ProcessHandle.__init__

    def make(self: ProcessHandle, *what: Any) -> None:
        real(self, *what)
        self.hibernated = 0

    patch(ProcessHandle, "__init__", make)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "seed"),
    [
        (mutant_end_of_a_move_missed, 8),
        (mutant_hibernated_client_never_returns, 9),
        (mutant_next_coordinator_misses_hibernation, 10),
    ],
)
def test_mutant_is_detected(mutant: Callable[[Patch], None], seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch.setattr)
    assert EpisodeWithMoves(seed).run().failure
