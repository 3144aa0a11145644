"""One simulated host: devices, clients with their processes, one coordinator at a time, and an account of who ran when.

The account is the processes' own: what their calls meet on the device. Nothing that the coordinator believes is in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from jupyter_gpushare.coordinator.settings import LiveSettings

from ..coordinator.fake_process import lock_file
from .agent import Agent
from .clock import Clock, Owner
from .coordinator import Coordinator
from .memory import flock, lock_kind
from .people import Caller, User
from .program import Collective, Habits
from .sockets import Connection, Killed

REMEMBERED = 400  # of what happened last
STATES = ("closed", "open", "closing", "step")


class Violation(AssertionError):
    """Something that must never be."""


class Kernel(Owner):
    """Who carries bytes about. That is no event of its own."""

    counts = False


@dataclass
class Talk:
    """What happens to lines that a broken participant says: each a fraction of them."""

    lost: float = 0.0
    late: float = 0.0  # by up to a second, so out of order
    repeated: float = 0.0


@dataclass(eq=False)
class ClientOf:
    """A client, as its user knows it."""

    host: Host
    name: str
    uid: int
    devices: tuple[str, ...]
    habits: Habits
    quota: str = ""
    token: str = "secret"
    agents: list[Agent] = field(default_factory=list)
    talk: Talk | None = None
    hostile: bool = False  # its own account is not to be believed
    ranks: int = 1  # how many processes it has, when nothing is wrong
    _collectives: list[Collective] = field(default_factory=list)

    def start(self) -> Agent:
        agent = Agent(self.host, self, self.host.next_pid(), self.devices)
        self.agents.append(agent)
        return agent

    def collective(self, first: Agent) -> None:
        """Every process that has a turn with it is to make one call, and the work of each ends when all have."""
        ranks = [agent for agent in self.agents if agent.files.client_inode == first.files.client_inode]
        if len(self._collectives) < 2:
            found = Collective({agent.pid for agent in ranks})
            self._collectives.append(found)
            for agent in ranks:
                agent.program.owes(found)

    def settle_collectives(self) -> None:
        """Somebody has made its call, or is gone."""
        self._collectives = [one for one in self._collectives if one.missing]
        for agent in self.agents:
            agent.program.look_at_collectives()

    def ended(self, agent: Agent) -> None:
        """A rank is gone: nobody waits for it any more."""
        self.agents.remove(agent)
        for one in self._collectives:
            one.missing.discard(agent.pid)
        self.settle_collectives()

    def line_faults(self, agent: Agent, line: bytes) -> list[bytes]:
        """What is really sent of a line, now."""
        talk = self.talk
        if talk is None:
            return [line]
        random = self.host.talk_random
        chance = random.random()
        if chance < talk.lost:
            return []
        if (chance := chance - talk.lost) < talk.late:
            delay = random.choice((0.002, 0.05, 1.0)) * random.random()
            self.host.clock.at(self.host.clock.now + delay, agent, _say_late, agent.link.connection, line)
            return []
        return [line, line] if chance - talk.late < talk.repeated else [line]


def _say_late(connection: Connection, line: bytes) -> None:
    connection.send(line)


class Host:
    """`preemption`: how often a process loses the processor where that matters."""

    def __init__(self, seed: int, folder: Path, settings: LiveSettings, devices: int, shared: bool) -> None:
        self.random = Random(seed)
        self.talk_random = self.fork()
        self.clock = Clock()
        self.kernel = Kernel()
        self.folder, self.settings, self.shared = folder, settings, shared
        self.memory = 8 << 30
        self.driver_has = self.random.choice((0, 1 << 30))  # of it, which no coordinator knows of
        self.devices = tuple(f"GPU-{number}" for number in range(devices))
        self.clients: dict[str, ClientOf] = {}
        self.coordinator: Coordinator | None = None
        self.coordinators = 0
        self.preemption = 0.0
        self.kill_while_speaking = 0.0
        self.interleave = 0.0
        self.bugs: list[str] = []
        self.users: list[User] = []  # who wait for an answer
        self.notebooks: list[Caller] = []
        self.turns = 0  # openings that were used
        self.story: deque[tuple[float, str]] = deque(maxlen=REMEMBERED)
        self._digest = hashlib.blake2b(digest_size=8)
        self._pids = 1 << 22  # above what any process of this machine has
        self._agents: dict[int, Agent] = {}  # by inode of the page
        self._by_pid: dict[int, Agent] = {}
        self._on: dict[str, list[Agent]] = {uuid: [] for uuid in self.devices}
        self._probes = {uuid: lock_file(uuid) for uuid in self.devices}
        self._outside: dict[str, int] = {}
        self._lock_waiters: dict[Agent, int] = {}
        self._used: dict[int, int] = {}  # by pid: the word under which it came in last
        self._depth = 0
        self._watched: dict[int, list[tuple[Coordinator, int]]] = {}  # pidfds by pid
        self.clock.after = self._after
        self.checks: list[Callable[[Owner], None]] = []

    def fork(self) -> Random:
        return Random(self.random.getrandbits(64))

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def tell(self, what: str) -> None:
        self.story.append((self.clock.now, what))
        self._digest.update(f"{self.clock.now!r} {what}".encode())

    def digest(self) -> str:
        """Of everything that was told."""
        return self._digest.hexdigest()

    # --- participants

    def client(self, name: str, devices: tuple[str, ...], habits: Habits, uid: int = 1000, quota: str = "") -> ClientOf:
        client = self.clients[name] = ClientOf(self, name, uid, devices, habits, quota)
        return client

    def room(self, agent: Agent) -> int:
        """Bytes that its device still has, beside what is there of all processes whose memory is not paged."""
        there = sum(
            other.report.resident - other.program.room.wanted
            for other in self._on[agent.devices[0]]
            if other.program.habits.swaps
        )
        return self.memory - self.driver_has - int(there)

    def started(self, agent: Agent) -> None:
        self._agents[agent.files.inode] = agent
        self._by_pid[agent.pid] = agent
        for uuid in agent.devices:
            self._on[uuid].append(agent)

    def end(self, agent: Agent) -> None:
        """The process ends, by whatever."""
        self.tell(f"{agent} ends")
        del self._agents[agent.files.inode], self._by_pid[agent.pid]
        for coordinator, descriptor in self._watched.pop(agent.pid, ()):
            self.clock.at(self.clock.now, coordinator, coordinator.loop.readable, descriptor)
        self._used.pop(agent.pid, None)
        for uuid in agent.devices:
            self._on[uuid].remove(agent)
        agent.die()
        agent.client.ended(agent)

    def stop(self, agent: Agent) -> None:
        self.tell(f"{agent} is stopped")
        self.clock.stop(agent)

    def go_on(self, agent: Agent) -> None:
        self.tell(f"{agent} goes on")
        self.clock.go_on(agent)

    def is_stopped(self, pid: int) -> bool:
        agent = self._by_pid.get(pid)
        return agent is not None and agent.stopped

    def takes_processor(self, agent: Agent) -> bool:
        return agent.random.random() < self.preemption

    def refused(self, agent: Agent, message: dict[str, Any]) -> None:
        if message["reason"] == "internal":
            self.bugs.append(f"{agent} met a bug: {message}")

    def agents(self) -> list[Agent]:
        return [agent for client in self.clients.values() for agent in client.agents]

    def ask(self, client: ClientOf, request: dict[str, Any]) -> None:
        """A user's command."""
        self.users.append(User(self, client.uid, {"client": client.name, **request}))

    def in_flight(self, name: str) -> bool:
        """Whether something that the client's processes said has not been read."""
        client = self.clients.get(name)
        return client is None or any(
            agent.link.connection and agent.link.connection.up.count for agent in client.agents
        )

    def travelling(self) -> list[str]:
        """Whose hello or its answer is on its way."""
        return [str(agent) for agent in self.agents() if agent.contact == "asking"]

    def descriptors(self) -> int:
        """That processes and outsiders have open."""
        return sum(agent.descriptors for agent in self.agents()) + len(self._outside)

    # --- the coordinator

    def start_coordinator(self) -> Coordinator:
        assert self.coordinator is None
        self.coordinators += 1
        self.tell(f"coordinator {self.coordinators} starts")
        self.coordinator = Coordinator(
            self.clock, self.kernel, self.fork(), self.settings, str(self.folder / "coordinator.sock")
        )
        self.coordinator.on_speaking = self._speaking
        return self.coordinator

    def kill_coordinator(self) -> None:
        if self.coordinator:
            self.tell(f"coordinator {self.coordinators} is killed")
            coordinator, self.coordinator = self.coordinator, None
            coordinator.kill()

    def connect(self, pid: int, uid: int, woken: Callable[[], None]) -> Connection | None:
        """None: nobody listens."""
        return Connection(self.coordinator, self.fork(), (pid, uid), woken) if self.coordinator else None

    def _speaking(self) -> None:
        """Before each line that the coordinator sends: others run beside it, and somebody may kill it here."""
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

    def woken(self, inode: int) -> None:
        if agent := self._agents.get(inode):
            agent.program.woken()

    def watch(self, pid: int) -> int:
        """A pidfd, as good as."""
        if pid not in self._by_pid or self.coordinator is None:
            raise ProcessLookupError(3, "No such process")
        descriptor = os.eventfd(0)
        self._watched.setdefault(pid, []).append((self.coordinator, descriptor))
        return descriptor

    # --- locks

    def waits_for_lock(self, agent: Agent, descriptor: int) -> None:
        self._lock_waiters[agent] = descriptor

    def forget_lock_waiter(self, agent: Agent) -> None:
        self._lock_waiters.pop(agent, None)

    def lock_outside(self, uuid: str) -> bool:
        """Another user's coordinator takes the device, if it is free."""
        if uuid in self._outside:
            return False
        descriptor = lock_file(uuid)
        if not flock(descriptor, fcntl.LOCK_EX):
            os.close(descriptor)
            return False
        self.tell(f"{uuid} is taken by somebody else")
        self._outside[uuid] = descriptor
        for agent in self._on[uuid]:
            if self.works(agent) and not agent.client.hostile:
                raise Violation(f"{agent} works on {uuid} without its lock")
        return True

    def unlock_outside(self, uuid: str) -> None:
        if (descriptor := self._outside.pop(uuid, None)) is not None:
            self.tell(f"{uuid} is free again")
            os.close(descriptor)

    def _after(self, owner: Owner) -> None:
        for agent, descriptor in list(self._lock_waiters.items()) if self._lock_waiters else ():
            if not agent.stopped and flock(descriptor, fcntl.LOCK_EX):
                del self._lock_waiters[agent]
                agent.relay.has_lock()
        if self._depth == 0:
            for check in self.checks:
                check(owner)

    # --- the account

    def works(self, agent: Agent) -> bool:
        return agent.program.inside > 0 or agent.program.outstanding(self.clock.now)

    def enters(self, agent: Agent, word: int) -> None:
        """A call of the process passes the gate."""
        if agent.client.hostile:
            return
        first = self._used.get(agent.pid) != word
        if first:
            self._used[agent.pid] = word
            self.turns += 1
        for uuid in agent.devices:
            beside = [
                other
                for other in self._on[uuid]
                if other.client is not agent.client and not other.client.hostile and self.works(other)
            ]
            if beside and not self.shared:
                raise Violation(f"{agent} enters by {word >> 2} on {uuid} where {', '.join(map(str, beside))} works")
            if uuid in self._outside:
                raise Violation(f"{agent} enters on {uuid}, which is locked by somebody else")
            if first and flock(self._probes[uuid], fcntl.LOCK_EX if self.shared else fcntl.LOCK_SH):
                flock(self._probes[uuid], fcntl.LOCK_UN)
                raise Violation(f"{agent} enters by {word >> 2} on {uuid}, of which nobody has the lock")
            for other in beside if first else ():
                kinds = [{lock_kind(lock) for lock in one.locks_of(uuid)} - {""} for one in (agent, other)]
                if kinds != [{"READ"}, {"READ"}]:
                    raise Violation(f"{agent} and {other} run together on {uuid} by locks {kinds}")

    def state(self) -> list[str]:
        """How things stand, for a report."""
        lines = []
        for agent in self.agents():
            word = agent.orders.gate
            lines.append(
                f"{agent} on {', '.join(agent.devices)}: {agent.contact}, {STATES[word & 3]} {word >> 2}, drained "
                f"{agent.report.drained_epoch}, waiting {agent.report.waiting}, inside {agent.program.inside}, works "
                f"{self.works(agent)}, mode {agent.report.mode}, carry {agent.orders.carry}, stopped {agent.stopped}"
            )
        scheduler = self.coordinator.daemon.scheduler if self.coordinator else None
        for client in scheduler.clients.values() if scheduler else ():
            processes = ", ".join(
                f"{number}{' wants' * p.wants}{' drained' * p.drained} {p.epoch}"
                for number, p in client.processes.items()
            )
            grant = client.grant
            about = (
                f"{grant.devices} {grant.epoch} since {grant.began:.3f}, closing {grant.closing_since}"
                if grant
                else "none"
            )
            lines.append(f"{client.id} is {client.phase}, {client.quota}: processes {processes}; grant {about}")
        return lines

    # --- the end

    def close(self) -> None:
        self.checks.clear()
        self.kill_coordinator()
        for agent in list(self._agents.values()):
            self.end(agent)
        for caller in (*self.users, *self.notebooks):
            caller.die()
        for uuid in list(self._outside):
            self.unlock_outside(uuid)
        for descriptor in self._probes.values():
            os.close(descriptor)
        self.clock.run(self.clock.now + 60.0)  # what was on its way, descriptors with it, arrives nowhere
