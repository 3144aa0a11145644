"""What must hold between two events, and what must hold when all faults are over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jupyter_gpushare.core.views import invariants as of_the_core

from ..support.memory_requests import ANSWER_TIMEOUT_SECONDS
from .simulated_host import Violation

if TYPE_CHECKING:
    from .coordinator import CoordinatorUnderTest
    from .simulated_host import FaultHost, FaultyClient

MAX_IDLE_SECONDS = 3.0  # seconds that devices may do nothing though somebody waits and nothing is wrong
MAX_LATE_SECONDS = 0.5  # seconds; beyond what timers of the simulation are late


def state_mismatches(coordinator: CoordinatorUnderTest, host: FaultHost) -> Iterator[str]:
    """What the scheduler, the daemon, and locks and connections say of each other. Yields what does not agree."""
    daemon = coordinator.daemon
    scheduler = daemon.scheduler
    try:
        of_the_core.check(scheduler, scheduler.turns.table.now)
    except of_the_core.InvariantViolation as broken:
        yield str(broken)
    due = scheduler.next_deadline()
    if due is not None and host.clock.now - max(due, coordinator.resumed_at) > MAX_LATE_SECONDS:
        yield f"the deadline at {due:.3f} was not met"
    if set(scheduler.processes) != set(daemon.process_handles):
        yield f"the scheduler has processes {sorted(scheduler.processes)}, not {sorted(daemon.process_handles)}"
    if set(scheduler.clients) != set(daemon.runtimes):
        yield f"the scheduler knows clients {sorted(scheduler.clients)}, the daemon {sorted(daemon.runtimes)}"
    for number, port in daemon.process_handles.items():
        member = daemon.registry.runtime_of(port)
        if member is None or member.processes.get(number) is not port:
            yield f"port {number} is of no client"
        if not port.connection.is_open:
            yield f"port {number} has no connection any more"


def wrong_refusals(coordinator: CoordinatorUnderTest, host: FaultHost) -> Iterator[str]:
    """Requests for room that this event has refused, while another client's memory on that device could leave."""
    ports = {port.page.inode for port in coordinator.daemon.process_handles.values()}
    if ports - {agent.page.inode for agent in host.agents()}:
        return  # a liar reports memory, and the coordinator has to believe it
    for agent in host.agents():
        room = agent.program.memory_requests
        if not room.is_refused or room.checked_refusal == agent.page.control.refused_request_seq:
            continue
        room.checked_refusal = agent.page.control.refused_request_seq
        others = [
            other
            for other in host.agents()
            if other.client is not agent.client and other.devices[0] == agent.devices[0] and other.page.inode in ports
        ]
        own = sum(other.page.report.allocated for other in agent.client.agents)
        there = [str(other) for other in others if other.page.report.resident]
        if there and own <= host.memory and host.clock.now < room.waiting_since + ANSWER_TIMEOUT_SECONDS:
            yield f"{agent} is refused room though memory of {', '.join(there)} can leave"


def resource_leaks(coordinator: CoordinatorUnderTest, host: FaultHost, before: int) -> Iterator[str]:
    """When nothing is on its way: descriptors are those of living processes, and the daemon remembers nobody else."""
    daemon = coordinator.daemon
    agents = [agent for client in host.clients.values() for agent in client.agents]
    if len(daemon.process_handles) != len(agents):
        yield f"{len(agents)} processes live, the daemon has {len(daemon.process_handles)}"
    expected = before + host.descriptors()
    for client in host.clients.values():
        if client.agents:
            expected += 2 * len(client.agents) + 2
    expected += len(daemon.registry.exit_watcher._watched) + len(daemon.lock_contention._files)
    found = len(os.listdir("/proc/self/fd"))
    if found != expected:
        yield f"{found} descriptors are open, {expected} are accounted for"
    if len(coordinator.sockets) != len(coordinator.peers):
        yield f"{len(coordinator.sockets)} connections, {len(coordinator.peers)} peers"
    if len(coordinator.service._sessions._sessions) != len(coordinator.peers):
        yield f"{len(coordinator.service._sessions._sessions)} sessions, {len(coordinator.peers)} peers"
    known = set(daemon.runtimes)
    if strangers := set(daemon.history._present) - known:
        yield f"history is kept of {sorted(strangers)}, which are gone"


class IdleWatch:
    """Whether all devices do nothing while somebody waits who is not to be patient."""

    def __init__(self, host: FaultHost, excused: set[FaultyClient]) -> None:
        self._host, self._patient = host, excused
        self._turns, self._since = -1, 0.0

    def check(self) -> None:
        host = self._host
        waiting = [
            a for a in host.agents() if a.client not in self._patient and any(t.is_waiting for t in a.program.threads)
        ]
        if not waiting or host.turns != self._turns or any(agent.is_working for agent in host.agents()):
            self._turns, self._since = host.turns, host.clock.now
        elif host.clock.now - self._since > MAX_IDLE_SECONDS:
            raise Violation(f"nothing has run for {MAX_IDLE_SECONDS:g} s though {', '.join(map(str, waiting))} wait")
