"""Model of restores of a process in mode swap, as in native/shim/memory/residency.c and transfers/shortage.c."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jupyter_gpushare.agent.link import CONNECTED

from .memory_requests import ANSWER_TIMEOUT_SECONDS

if TYPE_CHECKING:
    from .simulated_process import SimulatedProcess

FIRST_REQUEST_SECONDS = 0.02  # from the first try of a restore to the first request for room
BYTES_PER_SECOND = 20e9  # of restores

RESTORED, NOT_READY, OUT_OF_MEMORY = range(3)


class RestoreRequests:
    """Model of the restores of one process, and of their requests for room."""

    def __init__(self, agent: SimulatedProcess) -> None:
        self._agent = agent
        self.waiting_since = 0.0  # since when memory has had no room; 0: all memory has room
        self.restored_at = 0.0  # time at which the restored memory is on the device
        self._request_number = 0  # 0: no request in the page
        self._requested_in = -1  # number of the opening with the last try
        self._has_restored = False  # evicted memory has come back since all memory was on the device
        self.checked_refusal = 0  # number of the last request with a checked refusal

    def __str__(self) -> str:
        return str(self._agent)

    @property
    def is_refused(self) -> bool:
        """True if the coordinator has refused the request in the page."""
        return self._is_in_page() and self._agent.page.control.refused_request_seq == self._request_number

    @property
    def missing_bytes(self) -> int:
        """Bytes that a restore has to move; the bytes that are on their way to the device do not count."""
        report = self._agent.page.report
        return int(report.allocated - report.resident) - self._agent.program.memory_requests.absent_bytes

    def restore(self) -> int:
        """Restore as much memory as has room.

        The result OUT_OF_MEMORY is for memory that has had no room for 15 s and for which the coordinator refuses room.
        """
        agent, report = self._agent, self._agent.page.report
        now = agent.clock.now
        missing = self.missing_bytes
        moved = max(0, min(missing, agent.host.free_bytes(agent)) if agent.program.profile.uses_swap else missing)
        if moved:
            made = min(report.unmade - agent.program.memory_requests.absent_bytes, moved)
            report.resident += moved
            report.unmade -= made
            self.restored_at = max(now, self.restored_at) + (moved - made) / BYTES_PER_SECOND
            self._has_restored = self._has_restored or moved > made
        if moved < missing:
            return NOT_READY if moved else self._wait_for_room(now, missing)
        self._end_request()
        self.waiting_since = 0.0
        if self._has_restored:
            self._has_restored = False
            report.restored += 1
            agent.link.ring()
        return RESTORED

    def _wait_for_room(self, now: float, missing: int) -> int:
        agent = self._agent
        self.waiting_since = self.waiting_since or now
        if self._requested_in != agent.opening:  # a refusal of an earlier turn may no longer hold
            self._requested_in = agent.opening
            self._end_request()
        if now > self.waiting_since + FIRST_REQUEST_SECONDS:
            self._request(missing)
        if now > self.waiting_since + ANSWER_TIMEOUT_SECONDS and (self.is_refused or agent.link.state != CONNECTED):
            self._end_request()
            return OUT_OF_MEMORY
        return NOT_READY

    def _is_in_page(self) -> bool:
        """Return whether the page has a request of this restore. A request of an allocation replaces that request."""
        return bool(self._request_number) and self._request_number == self._agent.page.report.unmet_request_seq

    def _request(self, missing: int) -> None:
        report = self._agent.page.report
        is_free = self._is_in_page() or not self._agent.program.memory_requests.request_number
        if self._agent.link.state == CONNECTED and is_free and report.unmet_bytes != missing:
            self._publish(missing)

    def _publish(self, missing: int) -> None:
        report = self._agent.page.report
        report.unmet_bytes = missing
        report.unmet_request_seq += 1
        self._request_number = report.unmet_request_seq if missing else 0
        self._agent.link.ring()

    def _end_request(self) -> None:
        if self._is_in_page():
            self._publish(0)
        self._request_number = 0
