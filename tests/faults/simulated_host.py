"""Simulated host with devices, clients with their processes, and one coordinator at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.agent.link import CONNECTING
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings
from jupyter_gpushare.coordinator.host.cgroups import MemoryCgroup

from ..support.simulated_process import SimulatedProcess
from ..support.simulated_program import WorkloadProfile
from ..support.turn_audit import SimulatedClient, TurnAudit, Violation
from ..support.virtual_clock import EventOwner
from .coordinator import CoordinatorUnderTest
from .external_actors import ExternalActor, RequestClient
from .simulated_sockets import ActorConnection, CoordinatorKilled, MessageFaults

__all__ = ["FaultHost", "Violation"]


class Kernel(EventOwner):
    """Owner of the entries that carry bytes, which do not count as events."""

    is_counted = False


@dataclass(eq=False)
class FaultyClient(SimulatedClient):
    """Client that may send faulty lines for a while."""

    host: FaultHost
    message_faults: MessageFaults | None = None


class FaultHost(TurnAudit):
    """Audited host with faults.

    `kill_probability` and `interleave_probability` apply to each line that a coordinator sends.
    `shared` is true if clients may be colocated.
    """

    rings_doorbell = True

    def __init__(self, seed: int, folder: Path, settings: LiveSettings, devices: int, shared: bool) -> None:
        super().__init__(seed, devices)
        self.message_random = self.fork_random()
        self.kernel = Kernel()
        self.folder, self.settings, self.shared = folder, settings, shared
        self.driver_bytes = self.random.choice((0, 1 << 30))  # device memory of the driver, which no coordinator counts
        self.coordinator: CoordinatorUnderTest | None = None
        self.coordinators = 0
        self.host_memory: int | None = None  # bytes for evicted memory of half of the processes; None: no limit
        self.kill_probability = 0.0
        self.interleave_probability = 0.0
        self.bugs: list[str] = []
        self.requests: list[RequestClient] = []  # requests without their answer
        self.notebooks: list[ExternalActor] = []
        self._depth = 0
        self._pidfds: dict[int, list[tuple[CoordinatorUnderTest, int]]] = {}  # pidfds by pid
        self.clock.on_event = self._on_event
        self.checks: list[Callable[[EventOwner], None]] = []
        self.check_idle_devices(self.kernel)

    # --- participants

    def client(
        self, name: str, devices: tuple[str, ...], profile: WorkloadProfile, uid: int = 1000, quota: str = ""
    ) -> FaultyClient:
        client = FaultyClient(self, name, uid, devices, profile, quota)
        self.clients[name] = client
        return client

    def free_bytes(self, agent: SimulatedProcess) -> int:
        """Return the free bytes of the device, without the resident memory of processes in mode swap."""
        resident = sum(
            other.page.report.resident - other.program.memory_requests.reserved_bytes
            for other in self._agents_by_device[agent.devices[0]]
            if other.program.profile.uses_swap
        )
        return self.memory - self.driver_bytes - int(resident)

    def end(self, agent: SimulatedProcess) -> None:
        for coordinator, descriptor in self._pidfds.pop(agent.pid, ()):
            self.clock.schedule(self.clock.now, coordinator, coordinator.loop.readable, descriptor)
        super().end(agent)

    def is_stopped(self, pid: int) -> bool:
        agent = self._by_pid.get(pid)
        return agent is not None and agent.stopped

    def cgroups_of(self, pid: int) -> tuple[MemoryCgroup, ...]:
        """Return the limited cgroups of a process. Processes with an odd pid have one in common."""
        if self.host_memory is None or not pid % 2:
            return ()
        reports = [agent.page.report for agent in self.agents() if agent.pid % 2]
        evicted = sum(report.allocated - report.resident - report.unmade for report in reports)
        return (MemoryCgroup("/limited", self.host_memory, max(0, self.host_memory - evicted)),)

    def on_refused(self, agent: SimulatedProcess, message: dict[str, Any]) -> None:
        if message["reason"] == "internal":
            self.bugs.append(f"{agent} got an internal error: {message}")

    def send_user_request(self, client: SimulatedClient, request: dict[str, Any]) -> None:
        """Send a request as the user of a client."""
        self.requests.append(RequestClient(self, client.uid, {"client": client.name, **request}))

    def hellos_in_flight(self) -> list[str]:
        """Return the processes that have sent hello and have no answer."""
        return [str(agent) for agent in self.agents() if agent.link.state == CONNECTING]

    def descriptors(self) -> int:
        """Return the number of open files of all processes and of clients of other coordinators."""
        others = sum(locks.descriptors for locks in self._other_coordinator_locks.values())
        return sum(agent.descriptors for agent in self.agents()) + others

    # --- the coordinator

    def start_coordinator(self) -> CoordinatorUnderTest:
        assert self.coordinator is None
        self.coordinators += 1
        self.log_event(f"coordinator {self.coordinators} starts")
        self.coordinator = CoordinatorUnderTest(
            self.clock, self.kernel, self.fork_random(), self.settings, str(self.folder / "coordinator.sock")
        )
        self.coordinator.on_send = self._before_send
        return self.coordinator

    def kill_coordinator(self) -> None:
        if self.coordinator:
            self.log_event(f"coordinator {self.coordinators} is killed")
            coordinator, self.coordinator = self.coordinator, None
            coordinator.kill()

    def connect(self, agent: SimulatedProcess) -> ActorConnection | None:
        connection = self.connect_actor(agent.pid, agent.client.uid, agent.wake)
        if connection:
            connection.client = agent.client
            connection.owner = agent
        return connection

    def connect_actor(self, pid: int, uid: int, on_readable: Callable[[], None]) -> ActorConnection | None:
        """Return a connection, or None if no coordinator listens."""
        return (
            ActorConnection(self.coordinator, self.fork_random(), (pid, uid), on_readable) if self.coordinator else None
        )

    def _before_send(self) -> None:
        """Let other owners run, or kill the coordinator, before it sends a line."""
        if self.kill_probability and self.random.random() < self.kill_probability:
            raise CoordinatorKilled(self.coordinator)
        coordinator = self.coordinator
        if self.interleave_probability and self._depth == 0 and self.random.random() < self.interleave_probability:
            self._depth += 1
            end = self.clock.now + self.random.expovariate(self.random.choice((20_000.0, 1000.0)))
            while self.clock.step(end, except_for=coordinator):
                pass
            self._depth -= 1
            if coordinator and not coordinator.alive:
                raise CoordinatorKilled(coordinator)

    def step(self, end: float) -> bool:
        try:
            return self.clock.step(end)
        except CoordinatorKilled as killed:
            if killed.args[0] is self.coordinator:
                self.kill_coordinator()
            return True

    def run(self, end: float) -> None:
        while self.step(end):
            pass
        self.clock.now = max(self.clock.now, end)

    # --- system calls of the coordinator

    def open_pidfd(self, pid: int) -> int:
        """Return a descriptor in the place of a pidfd."""
        if pid not in self._by_pid or self.coordinator is None:
            raise ProcessLookupError(3, "No such process")
        descriptor = os.eventfd(0)
        self._pidfds.setdefault(pid, []).append((self.coordinator, descriptor))
        return descriptor

    def on_call(self, agent: SimulatedProcess) -> None:
        super().on_call(agent)
        for other in () if self.shared else (other for uuid in agent.devices for other in self._agents_by_device[uuid]):
            if other.is_working and other.client is not agent.client:
                raise Violation(f"{agent} makes a call while {other} works, without colocation")

    def _on_event(self, owner: EventOwner) -> None:
        if self._depth == 0:
            for check in self.checks:
                check(owner)

    def describe(self) -> list[str]:
        """Return a description of the state for a report."""
        lines = [agent.describe() for agent in self.agents()]
        scheduler = self.coordinator.engine.state.scheduler if self.coordinator else None
        for client in scheduler.clients.values() if scheduler else ():
            processes = ", ".join(
                f"{number}{' waits' * p.is_waiting_at_gate} {p.turn}" for number, p in client.processes.items()
            )
            lines.append(
                f"{client.id} is {client.phase}: processes {processes}; {client.permit}; next {client.pending_permit}"
            )
        return lines

    # --- the end

    def close(self) -> None:
        self.checks.clear()
        self.kill_coordinator()
        super().close()
        for caller in (*self.requests, *self.notebooks):
            caller.die()
        self.clock.run(self.clock.now + 60.0)  # lines on their way arrive, which closes their descriptors
