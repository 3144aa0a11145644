"""Whatever coordinators write and whatever ends: see `world.py`."""

from __future__ import annotations

import os
from typing import Any

from ..support import tier
from .simulated_host import SimulatedHost

EVENTS = float(os.environ.get("GPUSHARE_TEST_AGENT", tier.strength("5e4", "1e6")))
SECONDS = 5.0


def run(seed: int, rule: Any = None) -> tuple[int, int, str]:
    """Return events, turns, and what was wrong."""
    host = SimulatedHost(seed, rule)
    wrong = ""
    try:
        host.run(SECONDS)
        host.heal()
    except AssertionError as error:
        story = "\n".join(f"{at:.6f} {what}" for at, what in list(host.event_log)[-60:])
        wrong = f"{story}\nseed {seed}, {host.clock.now:.6f}: {error}"
    finally:
        host.close()
    return host.clock.events, host.turns, wrong


def test_invariants_hold_under_any_permits() -> None:
    events = turns = seed = 0
    while events < EVENTS:
        found, used, wrong = run(seed)
        assert not wrong, wrong
        events, turns, seed = events + found, turns + used, seed + 1
    assert turns > 10 * seed, f"{seed} seeds had {turns} turns"
