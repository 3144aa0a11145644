"""What must hold between two events, and what must hold when all faults are over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jupyter_gpushare.core import invariants as of_the_core

from ..support.room import PATIENCE
from .host import Violation

if TYPE_CHECKING:
    from .coordinator import CoordinatorUnderTest
    from .host import ClientOf, Host

IDLE = 3.0  # seconds that devices may do nothing though somebody waits and nothing is wrong
LATE = 0.5  # seconds; beyond what timers of the simulation are late


def books(coordinator: CoordinatorUnderTest, host: Host) -> Iterator[str]:
    """What the scheduler, the daemon, and locks and connections say of each other. Yields what does not agree."""
    daemon = coordinator.daemon
    scheduler = daemon.scheduler
    try:
        of_the_core.check(scheduler, scheduler.turns.now)
    except of_the_core.Broken as broken:
        yield str(broken)
    due = scheduler.next_deadline()
    if due is not None and host.clock.now - max(due, coordinator.went_on) > LATE:
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


def refusals(coordinator: CoordinatorUnderTest, host: Host) -> Iterator[str]:
    """Requests for room that this event has refused, while another client's memory on that device could leave."""
    ports = {port.page.inode for port in coordinator.daemon.process_handles.values()}
    if ports - {agent.page.inode for agent in host.agents()}:
        return  # a liar reports memory, and the coordinator has to believe it
    for agent in host.agents():
        room = agent.program.room
        if not room.is_answered or room.judged == agent.page.orders.no_room:
            continue
        room.judged = agent.page.orders.no_room
        others = [
            other
            for other in host.agents()
            if other.client is not agent.client and other.devices[0] == agent.devices[0] and other.page.inode in ports
        ]
        own = sum(other.page.report.allocated for other in agent.client.agents)
        there = [str(other) for other in others if other.page.report.resident]
        if there and own <= host.memory and host.clock.now < room.since + PATIENCE:
            yield f"{agent} is refused room though memory of {', '.join(there)} can leave"


def leaks(coordinator: CoordinatorUnderTest, host: Host, before: int) -> Iterator[str]:
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


class Idle:
    """Whether all devices do nothing while somebody waits who is not to be patient."""

    def __init__(self, host: Host, patient: set[ClientOf]) -> None:
        self._host, self._patient = host, patient
        self._turns, self._since = -1, 0.0

    def look(self) -> None:
        host = self._host
        waiting = [
            a for a in host.agents() if a.client not in self._patient and any(t.waits for t in a.program.threads)
        ]
        if not waiting or host.turns != self._turns or any(agent.works for agent in host.agents()):
            self._turns, self._since = host.turns, host.clock.now
        elif host.clock.now - self._since > IDLE:
            raise Violation(f"nothing has run for {IDLE:g} s though {', '.join(map(str, waiting))} wait")
