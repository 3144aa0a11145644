"""One simulated host: devices, clients with their processes, and one coordinator at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_gpushare.agent.link import CONNECTING
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings

from ..support.account import Account, Member, Violation
from ..support.agent import Agent
from ..support.clock import Owner
from ..support.program import Habits
from .coordinator import CoordinatorUnderTest
from .people import Caller, User
from .sockets import Connection, Killed, Talk

__all__ = ["Host", "Violation"]


class Kernel(Owner):
    """The carrier of bytes, which is no event of its own."""

    counts = False


@dataclass(eq=False)
class ClientOf(Member):
    """A client whose lines may be faulty for a while."""

    host: Host
    talk: Talk | None = None


class Host(Account):
    """See `Account`. `kill_while_speaking`, `interleave`: how often a coordinator's sending is interrupted, and how.

    `shared`: clients may run together.
    """

    rings = True

    def __init__(self, seed: int, folder: Path, settings: LiveSettings, devices: int, shared: bool) -> None:
        super().__init__(seed, devices)
        self.talk_random = self.fork()
        self.kernel = Kernel()
        self.folder, self.settings, self.shared = folder, settings, shared
        self.driver_has = self.random.choice((0, 1 << 30))  # of the memory, which no coordinator knows of
        self.coordinator: CoordinatorUnderTest | None = None
        self.coordinators = 0
        self.kill_while_speaking = 0.0
        self.interleave = 0.0
        self.bugs: list[str] = []
        self.users: list[User] = []  # that wait for an answer
        self.notebooks: list[Caller] = []
        self._depth = 0
        self._watched: dict[int, list[tuple[CoordinatorUnderTest, int]]] = {}  # pidfds by pid
        self.clock.after = self._after
        self.checks: list[Callable[[Owner], None]] = []
        self.look_for_idleness(self.kernel)

    # --- participants

    def client(self, name: str, devices: tuple[str, ...], habits: Habits, uid: int = 1000, quota: str = "") -> ClientOf:
        client = ClientOf(self, name, uid, devices, habits, quota)
        self.clients[name] = client
        return client

    def room(self, agent: Agent) -> int:
        """Return how many bytes its device has free, beside what is there of processes whose memory is not paged."""
        there = sum(
            other.page.report.resident - other.program.room.wanted
            for other in self._on[agent.devices[0]]
            if other.program.habits.swaps
        )
        return self.memory - self.driver_has - int(there)

    def end(self, agent: Agent) -> None:
        for coordinator, descriptor in self._watched.pop(agent.pid, ()):
            self.clock.at(self.clock.now, coordinator, coordinator.loop.readable, descriptor)
        super().end(agent)

    def is_stopped(self, pid: int) -> bool:
        agent = self._by_pid.get(pid)
        return agent is not None and agent.stopped

    def refused(self, agent: Agent, message: dict[str, Any]) -> None:
        if message["reason"] == "internal":
            self.bugs.append(f"{agent} met a bug: {message}")

    def ask(self, client: Member, request: dict[str, Any]) -> None:
        """A user's command."""
        self.users.append(User(self, client.uid, {"client": client.name, **request}))

    def travelling(self) -> list[str]:
        """Return the processes whose hello or its answer is on its way."""
        return [str(agent) for agent in self.agents() if agent.link.state == CONNECTING]

    def descriptors(self) -> int:
        """Return how many files processes and outsiders have open."""
        outside = sum(locks.descriptors for locks in self._outside.values())
        return sum(agent.descriptors for agent in self.agents()) + outside

    # --- the coordinator

    def start_coordinator(self) -> CoordinatorUnderTest:
        assert self.coordinator is None
        self.coordinators += 1
        self.tell(f"coordinator {self.coordinators} starts")
        self.coordinator = CoordinatorUnderTest(
            self.clock, self.kernel, self.fork(), self.settings, str(self.folder / "coordinator.sock")
        )
        self.coordinator.on_speaking = self._speaking
        return self.coordinator

    def kill_coordinator(self) -> None:
        if self.coordinator:
            self.tell(f"coordinator {self.coordinators} is killed")
            coordinator, self.coordinator = self.coordinator, None
            coordinator.kill()

    def connect(self, agent: Agent) -> Connection | None:
        connection = self.call(agent.pid, agent.client.uid, agent.kick)
        if connection:
            connection.client = agent.client
            connection.owner = agent
        return connection

    def call(self, pid: int, uid: int, woken: Callable[[], None]) -> Connection | None:
        """Return None if no coordinator listens."""
        return Connection(self.coordinator, self.fork(), (pid, uid), woken) if self.coordinator else None

    def _speaking(self) -> None:
        """Before each line that the coordinator sends others run beside it, and it may be killed."""
        if self.kill_while_speaking and self.random.random() < self.kill_while_speaking:
            raise Killed(self.coordinator)
        coordinator = self.coordinator
        if self.interleave and self._depth == 0 and self.random.random() < self.interleave:
            self._depth += 1
            end = self.clock.now + self.random.expovariate(self.random.choice((20_000.0, 1000.0)))
            while self.clock.step(end, except_for=coordinator):
                pass
            self._depth -= 1
            if coordinator and not coordinator.alive:
                raise Killed(coordinator)

    def step(self, end: float) -> bool:
        try:
            return self.clock.step(end)
        except Killed as killed:
            if killed.args[0] is self.coordinator:
                self.kill_coordinator()
            return True

    def run(self, end: float) -> None:
        while self.step(end):
            pass
        self.clock.now = max(self.clock.now, end)

    # --- what the coordinator asks the kernel for

    def watch(self, pid: int) -> int:
        """A pidfd, as good as."""
        if pid not in self._by_pid or self.coordinator is None:
            raise ProcessLookupError(3, "No such process")
        descriptor = os.eventfd(0)
        self._watched.setdefault(pid, []).append((self.coordinator, descriptor))
        return descriptor

    def enters(self, agent: Agent) -> None:
        super().enters(agent)
        for other in () if self.shared else (other for uuid in agent.devices for other in self._on[uuid]):
            if other.works and other.client is not agent.client:
                raise Violation(f"{agent} makes a call beside {other}, and the devices are not shared")

    def _after(self, owner: Owner) -> None:
        if self._depth == 0:
            for check in self.checks:
                check(owner)

    def state(self) -> list[str]:
        """Return how things stand, for a report."""
        lines = [agent.state() for agent in self.agents()]
        scheduler = self.coordinator.daemon.scheduler if self.coordinator else None
        for client in scheduler.clients.values() if scheduler else ():
            processes = ", ".join(f"{number}{' wants' * p.wants} {p.turn}" for number, p in client.processes.items())
            lines.append(f"{client.id} is {client.phase}: processes {processes}; {client.permit}; next {client.next}")
        return lines

    # --- the end

    def close(self) -> None:
        self.checks.clear()
        self.kill_coordinator()
        super().close()
        for caller in (*self.users, *self.notebooks):
            caller.die()
        self.clock.run(self.clock.now + 60.0)  # what was on its way, descriptors with it, arrives nowhere
