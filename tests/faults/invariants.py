"""Checks of invariants after each event, and of leaks and idle devices after the faults."""

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

MAX_IDLE_SECONDS = 3.0  # without work on any device while a client waits and there is no fault
MAX_LATE_SECONDS = 0.5  # above the delays of the simulation's timers


def state_mismatches(coordinator: CoordinatorUnderTest, host: FaultHost) -> Iterator[str]:
    """Yield the contradictions between the scheduler, the coordinator, the locks and the connections."""
    state = coordinator.engine.state
    scheduler = state.scheduler
    try:
        of_the_core.check(scheduler, scheduler.turns.table.now)
    except of_the_core.InvariantViolation as broken:
        yield str(broken)
    due = scheduler.next_deadline()
    if due is not None and host.clock.now - max(due, coordinator.resumed_at) > MAX_LATE_SECONDS:
        yield f"the deadline at {due:.3f} was not met"
    if set(scheduler.processes) != set(state.process_handles):
        yield f"the scheduler has processes {sorted(scheduler.processes)}, not {sorted(state.process_handles)}"
    if set(scheduler.clients) != set(state.runtimes):
        yield f"the scheduler has clients {sorted(scheduler.clients)}, the coordinator {sorted(state.runtimes)}"
    for number, handle in state.process_handles.items():
        runtime = state.runtime_of(handle)
        if runtime is None or runtime.processes.get(number) is not handle:
            yield f"process {number} belongs to no client"
        if not handle.connection.is_open:
            yield f"process {number} has no connection"


def wrong_refusals(coordinator: CoordinatorUnderTest, host: FaultHost) -> Iterator[str]:
    """Yield the requests for room that the last event refused although another client's memory could be evicted."""
    inodes = {handle.page.inode for handle in coordinator.engine.state.process_handles.values()}
    # The coordinator has to accept the memory that a hostile process reports.
    has_hostile_process = bool(inodes - {agent.page.inode for agent in host.agents()})
    requests = [
        (agent, room)
        for agent in host.agents()
        for room in (agent.program.memory_requests, agent.program.restore_requests)
    ]
    for agent, room in requests:
        if not room.is_refused or room.checked_refusal == agent.page.control.refused_request_seq:
            continue
        room.checked_refusal = agent.page.control.refused_request_seq
        if has_hostile_process:
            continue
        others = [
            other
            for other in host.agents()
            if other.client is not agent.client and other.devices[0] == agent.devices[0] and other.page.inode in inodes
        ]
        own = sum(other.page.report.allocated for other in agent.client.agents)
        # A client has a part of its bytes on each of its devices, so fewer bytes than devices count as none.
        evictable = [
            str(other)
            for other in others
            if (other.page.report.resident - other.program.memory_requests.reserved_bytes) // len(other.devices) > 0
        ]
        if evictable and own <= host.memory and host.clock.now < room.waiting_since + ANSWER_TIMEOUT_SECONDS:
            yield f"the coordinator refuses {agent} room, but the memory of {', '.join(evictable)} can be evicted"


def resource_leaks(coordinator: CoordinatorUnderTest, host: FaultHost, before: int) -> Iterator[str]:
    """Yield descriptors and records of the coordinator that belong to no living process.

    The caller ensures that no message is in flight.
    """
    engine = coordinator.engine
    agents = [agent for client in host.clients.values() for agent in client.agents]
    if len(engine.state.process_handles) != len(agents):
        yield f"{len(agents)} processes live, the coordinator has {len(engine.state.process_handles)}"
    expected = before + host.descriptors()
    for client in host.clients.values():
        if client.agents:
            expected += 2 * len(client.agents) + 2
    expected += len(engine.registry.exit_watcher._watched) + len(engine.lock_contention._files)
    found = len(os.listdir("/proc/self/fd"))
    if found != expected:
        yield f"{found} descriptors are open, {expected} are expected"
    if len(coordinator.sockets) != len(coordinator.connections):
        yield f"{len(coordinator.sockets)} sockets, {len(coordinator.connections)} connections"
    if len(coordinator.service._sessions._sessions) != len(coordinator.connections):
        yield f"{len(coordinator.service._sessions._sessions)} sessions, {len(coordinator.connections)} connections"
    if removed := set(engine.history._present) - set(engine.state.runtimes):
        yield f"the history has the removed clients {sorted(removed)}"


class IdleWatch:
    """Checker that some device works while a client waits.

    `excused` has the clients whose waits have no bound.
    """

    def __init__(self, host: FaultHost, excused: set[FaultyClient]) -> None:
        self._host, self._excused = host, excused
        self._turns, self._since = -1, 0.0

    def check(self) -> None:
        host = self._host
        waiting = [
            a for a in host.agents() if a.client not in self._excused and any(t.is_waiting for t in a.program.threads)
        ]
        if not waiting or host.turns != self._turns or any(agent.is_working for agent in host.agents()):
            self._turns, self._since = host.turns, host.clock.now
        elif host.clock.now - self._since > MAX_IDLE_SECONDS:
            raise Violation(f"no client has run for {MAX_IDLE_SECONDS:g} s, but {', '.join(map(str, waiting))} wait")
