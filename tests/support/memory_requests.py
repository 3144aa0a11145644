"""Model of memory requests of a process in mode swap, as in native/shim/memory/transfers/shortage.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpushare.agent.link import CONNECTED
from jupyter_gpushare.agent.rule import OPEN_GATE

if TYPE_CHECKING:
    from collections.abc import Callable

    from .simulated_process import SimulatedProcess

RETRY_SECONDS = 0.005  # between two attempts; the shim's are a millisecond apart
REPEAT_SECONDS = 0.1  # between two requests for the same bytes
ANSWER_TIMEOUT_SECONDS = 15.0  # without a coordinator that answers


class MemoryRequests:
    """Requests of one process for room, one allocation at a time.

    The bytes count as resident from the start, but those that wait are absent between turns.
    """

    def __init__(self, agent: SimulatedProcess) -> None:
        self._agent = agent
        self.missing_bytes = 0
        self.waiting_since = 0.0
        self.request_number = 0  # 0 without a request
        self._refused = False
        self._first_request, self._requested_at = 0, 0.0
        self._is_at_gate = False
        self.absent_bytes = 0  # missing bytes that do not count as resident, and that no restore brings
        self.checked_refusal = 0  # number of the last request with a checked refusal
        self._callback: Callable[[], None] = lambda: None

    def wait(self, missing_bytes: int, then: Callable[[], None]) -> None:
        """Wait for room and call `then` when there is room, when it is refused, or when the turn has ended."""
        self.missing_bytes, self.waiting_since, self._callback = missing_bytes, self._agent.clock.now, then
        self._try()

    def __str__(self) -> str:
        return str(self._agent)

    @property
    def is_waiting(self) -> bool:
        return self.missing_bytes > 0 and self._agent.alive

    def report_residency(self, is_in_turn: bool) -> None:
        """Count the bytes that wait as resident in turns only."""
        report = self._agent.page.report
        absent = 0 if is_in_turn else self.missing_bytes
        report.resident += self.absent_bytes - absent
        report.unmade += absent - self.absent_bytes
        self.absent_bytes = absent

    @property
    def reserved_bytes(self) -> int:
        """Missing bytes that count as resident."""
        return self.missing_bytes - self.absent_bytes

    @property
    def is_refused(self) -> bool:
        """True if the coordinator has refused a request of the present turn."""
        return (
            bool(self._first_request)
            and self._first_request <= self._agent.page.control.refused_request_seq <= self.request_number
        )

    def _try(self) -> None:
        agent, report = self._agent, self._agent.page.report
        if self._is_at_gate or (self.request_number and not agent.is_in_turn):
            self._next_turn()
        elif not agent.is_in_turn:
            report.resident -= self.missing_bytes
            report.unmade += self.missing_bytes
            self._end()
        elif self.missing_bytes <= agent.host.free_bytes(agent):
            self._end()
        elif self._refused or (not self.request_number and not self._is_connected()):
            report.allocated -= self.missing_bytes
            report.resident -= self.missing_bytes
            report.refused_allocations += 1
            agent.write_slot()
            self._end()
        else:
            if not self.request_number or agent.clock.now > self._requested_at + REPEAT_SECONDS:
                self._write_request(self.missing_bytes)
                self.request_number, self._requested_at = report.unmet_request_seq, agent.clock.now
                self._first_request = self._first_request or self.request_number
            late = not self._is_connected() and agent.clock.now > self.waiting_since + ANSWER_TIMEOUT_SECONDS
            self._refused = self.is_refused or late
            agent.clock.schedule(agent.clock.now + RETRY_SECONDS, agent, self._try)

    def _next_turn(self) -> None:
        """Try again in the next turn, because this turn has ended before there was room."""
        agent = self._agent
        passes = agent.gate == OPEN_GATE
        if not self._is_at_gate and self.request_number:
            self._write_request(0)
            self.request_number, self._first_request, self._refused = 0, 0, False
        if self._is_at_gate == passes:
            self._is_at_gate = not passes
            agent.change_waiting(1 if self._is_at_gate else -1)
        if passes:
            self.waiting_since = agent.clock.now
            self._try()
        else:
            agent.clock.schedule(agent.clock.now + RETRY_SECONDS, agent, self._try)

    def _is_connected(self) -> bool:
        return self._agent.link.state == CONNECTED

    def _write_request(self, missing_bytes: int) -> None:
        report = self._agent.page.report
        report.unmet_bytes = missing_bytes
        report.unmet_request_seq += 1
        self._agent.link.ring()

    def _end(self) -> None:
        self.missing_bytes = 0
        if self.request_number:
            self._write_request(0)
        self.request_number, self._first_request, self._refused = 0, 0, False
        self._callback()
