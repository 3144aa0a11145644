"""Room on the device for a process in mode swap: how it asks, waits and is refused (native/shim/memory/residency.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpushare.agent.link import CONNECTED
from jupyter_gpushare.agent.rule import OPEN_GATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .agent import Agent

TRY = 0.005  # between two tries; the shim's are a millisecond apart
AGAIN = 0.1  # between two requests for the same bytes
PATIENCE = 15.0  # without a coordinator that answers


class Room:
    """The requests for room of one process, one allocation at a time. The bytes count as resident from the start."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self.wanted = 0  # bytes that are not there yet
        self.since = 0.0
        self.asked = 0  # the number of the request; 0: none
        self._refused = False
        self._first, self._said_at = 0, 0.0
        self._stands = False  # at the gate
        self.judged = 0  # the last request whose refusal has been looked at
        self._then: Callable[[], None] = lambda: None

    def wait(self, wanted: int, then: Callable[[], None]) -> None:
        """`then` is called once the bytes are there, or refused, or to come with the next turn."""
        self.wanted, self.since, self._then = wanted, self._agent.clock.now, then
        self._try()

    def __str__(self) -> str:
        return str(self._agent)

    @property
    def waits(self) -> bool:
        return self.wanted > 0 and self._agent.alive

    @property
    def is_answered(self) -> bool:
        """Return whether a request of the present turn has been refused."""
        return bool(self._first) and self._first <= self._agent.page.orders.no_room <= self.asked

    def _try(self) -> None:
        agent, report = self._agent, self._agent.page.report
        if self._stands or (self.asked and not agent.running):
            self._next_turn()
        elif not agent.running:
            report.resident -= self.wanted
            self._end()
        elif self.wanted <= agent.host.room(agent):
            self._end()
        elif self._refused or (not self.asked and not self._can_ask()):
            report.allocated -= self.wanted
            report.resident -= self.wanted
            report.refused += 1
            agent.write_slot()
            self._end()
        else:
            if not self.asked or agent.clock.now > self._said_at + AGAIN:
                self._say(self.wanted)
                self.asked, self._said_at = report.short_seq, agent.clock.now
                self._first = self._first or self.asked
            patient = agent.link.state == CONNECTED
            late = not patient and agent.clock.now > self.since + PATIENCE
            self._refused = self.is_answered or late
            agent.clock.at(agent.clock.now + TRY, agent, self._try)

    def _next_turn(self) -> None:
        """Try again in the next turn: this one has ended before there was room."""
        agent = self._agent
        passes = agent.gate == OPEN_GATE
        if not self._stands and self.asked:
            self._say(0)
            self.asked, self._first, self._refused = 0, 0, False
        if self._stands == passes:
            self._stands = not passes
            agent.waits(1 if self._stands else -1)
        if passes:
            self.since = agent.clock.now
            self._try()
        else:
            agent.clock.at(agent.clock.now + TRY, agent, self._try)

    def _can_ask(self) -> bool:
        return self._agent.link.state == CONNECTED

    def _say(self, wanted: int) -> None:
        report = self._agent.page.report
        report.short_bytes = wanted
        report.short_seq += 1
        self._agent.link.ring()

    def _end(self) -> None:
        self.wanted = 0
        if self.asked:
            self._say(0)
        self.asked, self._first, self._refused = 0, 0, False
        self._then()
