"""Driver of the agent rule without sockets and lock files: a test sets the inputs, which stay until it changes them."""

from __future__ import annotations

from typing import Any

from jupyter_gpushare.agent.rule import ACTS, ENTERED, NOT_POLLED, NOT_TRIED, QUIET, ffi, native
from jupyter_gpushare.wire.page import MAY

MS = 1_000_000
NEVER = (1 << 64) - 1
TURN, OTHER, OWN = 1 << 40, 1 << 41, 1 << 42


class RuleDriver:
    """Agent with one device, a waiting thread, and a link to a coordinator that has written no permit.

    Times are in milliseconds.
    """

    def __init__(self, rule: Any = None) -> None:
        self.rule = rule or native()
        self.agent = ffi.new("struct agent *")
        self.given = ffi.new("struct agent_inputs *")
        self.out = ffi.new("struct agent_outputs *")
        self.given.now = 1_000_000 * MS
        self.given.quantum_ns = 100 * MS
        self.given.client_turn, self.given.client_devices, self.given.own_devices = OWN, 1, 1
        self.given.waiting = 1

    # --- inputs

    @property
    def now(self) -> int:
        return int(self.given.now)

    def advance(self, ms: float) -> None:
        self.given.now += int(ms * MS)

    def permit(self, epoch: int = 1, turn: int = TURN, flags: int = MAY, deadline: int = 0, devices: int = 1) -> None:
        permit = self.given.permit
        permit.epoch, permit.turn, permit.flags, permit.devices = epoch, turn, flags, devices
        permit.deadline_ns = deadline

    def lose_link(self, ms: float) -> None:
        """Set the loss of the link to `ms` milliseconds ago."""
        self.given.away_since = self.now - int(ms * MS)

    def sibling(self, closing: int = 1, turn: int = TURN, ms: float = 0) -> None:
        """Set the number of siblings that drain; the first one closed `ms` milliseconds ago in this turn."""
        self.given.closing_siblings = closing
        self.given.sibling_turn, self.given.sibling_since = turn, self.now - int(ms * MS)

    # --- steps

    def step(self, tried: int = NOT_TRIED, polled: int = NOT_POLLED, after: float = 0) -> set[str]:
        """Step after `after` milliseconds, and return the names of the acts."""
        self.advance(after)
        self.given.tried, self.given.polled = tried, polled
        self.rule.agent_step(self.agent, self.given, self.out)
        return {name for name, bit in ACTS.items() if self.out.acts & bit}

    def enter(self, tried: int = ENTERED) -> set[str]:
        """Attempt to enter, with this result."""
        assert "ENTER" in self.step(), "an attempt to enter"
        return self.step(tried)

    def enter_turn(self, **permit: int) -> None:
        """Enter a turn."""
        self.permit(**permit)
        self.enter()
        assert self.gate == "open"

    def drain_and_leave(self, **permit: int) -> set[str]:
        """Drain and leave, after this permit if one is given."""
        if permit:
            self.permit(**permit)
        assert "CLOSE" in self.step()
        assert "DRAINED" in self.step(polled=QUIET)
        return self.step()

    @property
    def gate(self) -> str:
        return ("closed", "open", "step")[self.out.gate]

    @property
    def phase(self) -> int:
        return int(self.out.report.phase)

    @property
    def wakes_in(self) -> float:
        """Milliseconds until the next step."""
        return float("inf") if self.out.wake_at == NEVER else (self.out.wake_at - self.now) / MS
