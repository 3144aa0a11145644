"""Test of simulated processes under random permits and kills: the invariants of `simulated_host.py` hold."""

from __future__ import annotations

import os
from typing import Any

from ..support import tier
from .simulated_host import SimulatedHost

EVENTS = float(os.environ.get("GPUSHARE_TEST_AGENT", tier.strength("5e4", "1e6")))
SECONDS = 5.0


def run(seed: int, rule: Any = None) -> tuple[int, int, str]:
    """Return the number of events, the number of turns, and the description of a failure or an empty text."""
    host = SimulatedHost(seed, rule)
    failure = ""
    try:
        host.run(SECONDS)
        host.heal()
    except AssertionError as error:
        log = "\n".join(f"{at:.6f} {what}" for at, what in list(host.event_log)[-60:])
        failure = f"{log}\nseed {seed}, {host.clock.now:.6f}: {error}"
    finally:
        host.close()
    return host.clock.events, host.turns, failure


def test_invariants_hold_under_any_permits() -> None:
    events = turns = seed = 0
    while events < EVENTS:
        more_events, more_turns, failure = run(seed)
        assert not failure, failure
        events, turns, seed = events + more_events, turns + more_turns, seed + 1
    assert turns > 10 * seed, f"{seed} seeds had {turns} turns"
