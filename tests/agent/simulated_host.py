"""Simulated host: processes with the compiled rule and real lock files, under coordinators with random permits.

These invariants hold for all permits.
A device works for one turn at a time, and for no process without the lock.
A process follows no permit that the coordinator has not written, and ends no turn without a reason.
No device is idle while a process may enter.
"""

from __future__ import annotations

from random import Random
from typing import Any

from jupyter_gpushare.agent.link import CONNECTED, Connection
from jupyter_gpushare.wire.page import CLOSING, IN, OUT

from ..support.simulated_process import SimulatedProcess
from ..support.simulated_program import WorkloadProfile
from ..support.turn_audit import SimulatedClient, TurnAudit, Violation
from ..support.virtual_clock import EventOwner
from .stand_in_coordinator import StandInCoordinator

MAY, RELIEVED = 1, 2
RECOVERY_SECONDS = 10.0


class FaultSource(EventOwner):
    """Source of faults."""

    is_counted = False


class SimulatedHost(TurnAudit):
    """Host of one seed."""

    def __init__(self, seed: int, rule: Any = None) -> None:
        random = Random(seed)
        super().__init__(seed, random.choice((1, 1, 2)), rule)
        self.chance = FaultSource()
        self.preemption = random.choice((0.0, 0.1, 0.4))
        self.coordinators: list[StandInCoordinator] = []
        self.current: StandInCoordinator | None = None
        self._turns = [random.randrange(1 << 32, 1 << 62) for _ in range(3)]
        self._left: dict[int, set[int]] = {}  # by pid: epochs of turns that the process has left since its last welcome
        self._permitted: set[int] = set()  # pids with a permit since their last welcome
        self._gates: dict[int, tuple[int, int]] = {}  # by pid: phase and opening after its last step
        for number in range(random.randint(2, 3)):
            self._client(number)
        for client in self.clients.values():
            for _ in range(client.process_count):
                client.start()
        self._start_coordinator()
        self._plan(0.004, self._write_random_permit)
        self._plan(1.0, self._kill)
        self._plan(0.5, self._stop)
        self._plan(1.0, self._disconnect)
        self._plan(4.0, self._replace_coordinator)
        self._plan(2.0, self._hang)
        self._plan(0.7, self._outside_client)
        self.check_idle_devices(self.chance)

    def _client(self, number: int) -> None:
        random = self.random
        devices = tuple(sorted(random.sample(self.devices, random.randint(1, len(self.devices)))))
        profile = WorkloadProfile(
            threads=random.choice((1, 2)),
            think_seconds=random.choice((0.001, 0.02, 0.2)),
            pause_seconds=random.choice((0.0005, 0.005)),
            work_seconds=random.choice((0.0005, 0.004)),
        )
        client = SimulatedClient(self, f"client-{number}", 1000, devices, profile, process_count=random.choice((1, 2)))
        profile.collective_probability = random.choice((0.0, 0.2)) if client.process_count > 1 else 0.0
        self.clients[client.name] = client

    # --- faults

    def _plan(self, seconds: float, fault: Any) -> None:
        """Schedule a fault again and again, with `seconds` between two on average."""

        def inject() -> None:
            fault()
            self._plan(seconds, fault)

        self.clock.schedule(self.clock.now + self.random.expovariate(1 / seconds), self.chance, inject)

    def _after(self, seconds: float, callback: Any, *args: Any) -> None:
        self.clock.schedule(self.clock.now + self.random.expovariate(1 / seconds), self.chance, callback, *args)

    def random_turn(self, random: Random) -> int:
        """Return a turn number that several clients may share, that one client has, or that is invalid."""
        chance = random.random()
        if chance < 0.7:
            return random.choice(self._turns)
        if chance < 0.9 and (agents := self.agents()):
            return int(random.choice(agents).client_page.view.turn)
        return random.choice((0, 5, (1 << 32) - 1, 1 << 63, (1 << 64) - 1))

    def _write_random_permit(self) -> None:
        able = [one for one in self.coordinators if one.alive and not one.stopped]
        if able:
            self.random.choice(able).write_random_permit()

    def _start_coordinator(self) -> None:
        self.current = StandInCoordinator(self, len(self.coordinators) + 1)
        self.coordinators.append(self.current)
        self.log_event(f"{self.current} starts")

    def _replace_coordinator(self) -> None:
        """Kill or stop the present coordinator; another takes over later, and a stopped one is resumed."""
        before, self.current = self.current, None
        if before:
            if self.random.random() < 0.5:
                self.log_event(f"{before} dies")
                before.kill()
            elif not before.stopped:
                self.stop(before)
                self._after(5.0, self._resume, before)
        self._after(self.random.choice((0.01, 3.0)), self._successor)

    def _successor(self) -> None:
        if self.current is None:
            self._start_coordinator()

    def _hang(self) -> None:
        if self.current and not self.current.stopped:
            self.stop(self.current)
            self._after(self.random.choice((0.05, 4.0)), self._resume, self.current)

    def _resume(self, owner: EventOwner) -> None:
        if owner.alive and owner.stopped:
            self.resume(owner)

    def _an_agent(self) -> SimulatedProcess | None:
        agents = self.agents()
        return self.random.choice(agents) if agents else None

    def _kill(self) -> None:
        if agent := self._an_agent():
            self.end(agent)
            self._after(0.2, self._restart, agent.client)

    def _restart(self, client: SimulatedClient) -> None:
        if len(client.agents) < client.process_count:
            client.start()

    def _stop(self) -> None:
        agent = self._an_agent()
        if agent and not agent.stopped:
            self.stop(agent)
            self._after(self.random.choice((0.003, 0.3)), self._resume, agent)

    def _disconnect(self) -> None:
        agent = self._an_agent()
        if agent and not agent.stopped and agent.link.state == CONNECTED:
            self.log_event(f"{agent} loses its connection")
            agent.link.disconnect()

    def _outside_client(self) -> None:
        uuid = self.random.choice(self.devices)
        if self.lock_as_other_coordinator(uuid):
            self._after(0.05, self.unlock_as_other_coordinator, uuid)

    def connect(self, agent: SimulatedProcess) -> Connection | None:
        return self.current.connect(agent) if self.current else None

    def on_welcome(self, agent: SimulatedProcess) -> None:
        self._left.pop(agent.pid, None)
        self._permitted.discard(agent.pid)

    # --- invariants

    def on_stepped(self, agent: SimulatedProcess) -> None:
        now, permit, turn = agent.stepped_at, agent.found_permit, agent.turn
        self._check_permit_written(agent)
        self._check_permit_kept(agent)
        before, opening = self._gates.get(agent.pid, (OUT, 0))
        self._gates[agent.pid] = agent.phase, agent.opening
        relieved = permit.flags & RELIEVED and permit.deadline_ns and now >= permit.deadline_ns
        may = permit.epoch and permit.flags & MAY and permit.turn == turn.turn and not relieved
        if agent.is_without_coordinator or not permit.epoch:
            return
        left = self._left.setdefault(agent.pid, set())
        if agent.phase == IN and agent.opening != opening:
            self.log_event(f"{agent} is in {turn.turn:#x} by {turn.epoch}")
            if turn.epoch in left:
                raise Violation(f"{agent} enters by epoch {turn.epoch}, under which it has left")
        if agent.phase == IN and not may:
            raise Violation(f"{agent} stays by {_text(permit)}")
        if before == IN and agent.phase == CLOSING and may:
            raise Violation(f"{agent} closes its gate by {_text(permit)}")
        if before != OUT and agent.phase == OUT and turn.epoch:
            left.add(turn.epoch)

    def on_call(self, agent: SimulatedProcess) -> None:
        permit = agent.found_permit
        may = (
            agent.is_without_coordinator or not permit.epoch or (permit.flags & MAY and permit.turn == agent.turn.turn)
        )
        if agent.phase == IN and not may:
            raise Violation(f"{agent} makes a call by {_text(permit)}")
        super().on_call(agent)

    def _check_permit_written(self, agent: SimulatedProcess) -> None:
        connection = agent.link.connection
        if agent.link.state != CONNECTED or connection is None or not connection.page:
            return
        if agent.permit_bytes not in connection.page.written:
            raise Violation(f"{agent} follows {_text(agent.permit)}, which {connection.coordinator} has not written")

    def _check_permit_kept(self, agent: SimulatedProcess) -> None:
        """Check that a process without a connection keeps its last permit."""
        if agent.found_permit.epoch:
            self._permitted.add(agent.pid)
        elif agent.pid in self._permitted and agent.link.state != CONNECTED:
            raise Violation(f"{agent} has discarded its last permit without a connection")

    # --- the run

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.step(end):
            pass

    def heal(self) -> None:
        """End all faults and all coordinators, and check that each waiting process gets a turn without them."""
        self.log_event("all faults end")
        self.chance.alive = False
        self.preemption = 0.0
        for uuid in self.devices:
            self.unlock_as_other_coordinator(uuid)
        for coordinator in self.coordinators:
            coordinator.kill()
        self.current = None
        for agent in self.agents():
            self._resume(agent)
        passed = {agent.pid: agent.program.call_count for agent in self.agents()}
        self.run(RECOVERY_SECONDS)
        for agent in self.agents():
            if agent.waiting and agent.program.call_count == passed[agent.pid]:
                raise Violation(f"{agent.describe()} has had no turn in {RECOVERY_SECONDS} s without a coordinator")

    def close(self) -> None:
        super().close()
        for coordinator in self.coordinators:
            coordinator.close()


def _text(permit: Any) -> str:
    flags, deadline = permit.flags, permit.deadline_ns / 1e9
    return f"permit {permit.epoch} of {permit.turn:#x}, flags {flags}, until {deadline:.6f}"
