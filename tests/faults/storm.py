"""Faults: which happen in a storm, how often, and what heals them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..support.clock import Owner
from .people import Liar, User
from .sockets import Talk

if TYPE_CHECKING:
    from ..support.account import Member
    from ..support.agent import Agent
    from .host import Host

QUOTAS: tuple[dict[str, Any], ...] = (
    {"limit": 0.3, "share": 0.0},
    {"limit": 1.0, "share": 0.2},
    {"limit": 1.0, "share": 0.0, "service": "offline"},
    {"limit": 1.0, "share": 0.0, "service": "online", "memory": "2GiB", "resident": "1GiB"},
    {"limit": 1.0, "share": 0.0, "service": "online", "memory": None, "resident": None},
)


class Storm(Owner):
    """From its making until `heal`. Which faults it has, and how often each comes, is drawn from the host's seed."""

    def __init__(self, host: Host, kinds: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.host, self.clock = host, host.clock
        self.random = host.fork()
        self._liars: list[Liar] = []
        rates: dict[str, tuple[Callable[[], object], float]] = {
            "kill": (self._kill, 0.5),
            "leave": (self._leave, 0.1),
            "stop": (self._stop, 0.5),
            "disconnect": (self._disconnect, 0.3),
            "coordinator": (self._kill_coordinator, 0.3),
            "hang": (self._hang_coordinator, 0.15),
            "speaking": (self._kill_while_speaking, 0.1),
            "outside": (self._outside, 0.3),
            "talk": (self._talk, 0.5),
            "liar": (self._liar, 0.2),
            "user": (self._user, 2.0),
            "runaway": (self._runaway, 0.4),
        }
        random = self.random
        self.kinds = tuple(kind for kind in rates if (random.random() < 0.5 if kinds is None else kind in kinds))
        self.faults = dict.fromkeys(self.kinds, 0)
        intensity = random.choice((0.5, 1.0, 3.0))
        host.tell(f"storm of {', '.join(self.kinds)}, {intensity}")
        host.preemption = random.choice((0.0, 0.02, 0.2))
        host.interleave = random.choice((0.0, 0.0, 0.05))
        for kind in self.kinds:
            self._plan(kind, rates[kind][0], rates[kind][1] * intensity)

    def _plan(self, kind: str, fault: Callable[[], object], rate: float) -> None:
        def happens() -> None:
            self.faults[kind] += 1
            fault()
            self._plan(kind, fault, rate)

        self.clock.at(self.clock.now + self.random.expovariate(rate), self, happens)

    def _in(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.clock.at(self.clock.now + seconds, self, callback, *args)

    def _a_client(self) -> Member:
        return self.random.choice(list(self.host.clients.values()))

    def _an_agent(self) -> Agent | None:
        agents = self.host.agents()
        return self.random.choice(agents) if agents else None

    # --- processes

    def _kill(self) -> None:
        if agent := self._an_agent():
            self.host.end(agent)
            self._in(self.random.expovariate(1.0), self._start, agent.client)

    def _start(self, client: Member) -> None:
        if len(client.agents) < client.ranks:
            client.start()

    def _leave(self) -> None:
        """All of a client's processes end at once, and another may come under its name."""
        client = self._a_client()
        for agent in list(client.agents):
            self.host.end(agent)
        if self.random.random() < 0.5:
            self.host.ask(client, {"type": "forget"})
        self._in(self.random.expovariate(0.5), self._start, client)

    def _stop(self) -> None:
        agent = self._an_agent()
        if agent and not agent.stopped:
            self.host.stop(agent)
            seconds = self.random.choice((0.003, 0.3, 3.0)) * self.random.expovariate(1.0)
            self._in(seconds, self._go_on, agent)

    def _go_on(self, agent: Agent) -> None:
        if agent.alive and agent.stopped:
            self.host.go_on(agent)

    def _disconnect(self) -> None:
        agent = self._an_agent()
        if agent and agent.link.connection and not agent.stopped:
            self.host.tell(f"{agent} loses its connection")
            agent.link.disconnect()

    def _runaway(self) -> None:
        """Work that takes very long."""
        if agent := self._an_agent():
            seconds = self.random.choice((0.5, 5.0))
            self.host.tell(f"{agent} runs for {seconds} s")
            agent.program.works_for(seconds)

    # --- coordinators

    def _kill_coordinator(self) -> None:
        if self.host.coordinator:
            self.host.kill_coordinator()
            away = self.random.choice((0.0, 0.05, 1.0, 4.0)) * self.random.expovariate(1.0)
            self._in(away, self._start_coordinator)

    def _start_coordinator(self) -> None:
        if self.host.coordinator is None:
            self.host.start_coordinator()

    def _hang_coordinator(self) -> None:
        coordinator = self.host.coordinator
        if coordinator and not coordinator.stopped:
            self.host.stop(coordinator)
            self._in(self.random.choice((0.01, 0.5, 4.0)) * self.random.expovariate(1.0), self._unhang, coordinator)

    def _unhang(self, coordinator: Owner) -> None:
        if coordinator.alive and coordinator.stopped:
            self.host.go_on(coordinator)

    def _kill_while_speaking(self) -> None:
        """Somewhere in the midst of what it does next."""
        self.host.kill_while_speaking = 0.1
        self._in(2.0, self._start_coordinator)
        self._in(1.0, self._speaks_safely)

    def _speaks_safely(self) -> None:
        self.host.kill_while_speaking = 0.0

    # --- others

    def _outside(self) -> None:
        uuid = self.random.choice(self.host.devices)
        if self.host.lock_outside(uuid):
            self._in(self.random.expovariate(2.0), self.host.unlock_outside, uuid)

    def _talk(self) -> None:
        client = self._a_client()
        random = self.random
        client.talk = Talk(*(random.choice((0.0, 0.1, 0.5)) * 0.6 for _ in range(3)))
        self.host.tell(f"{client.name} talks badly: {client.talk}")
        self._in(random.expovariate(0.5), self._talks_well, client)

    def _talks_well(self, client: Member) -> None:
        client.talk = None

    def _liar(self) -> None:
        if len(self._liars) < 2:
            devices = tuple(sorted(self.random.sample(self.host.devices, 1)))
            self._liars.append(Liar(self.host, self.random.choice((1000, 1001)), devices))
        else:
            self._liars.pop(0).die()

    def _user(self) -> None:
        """A command of a user, or of an admin."""
        random = self.random
        client = self._a_client()
        kind = random.choice(
            ("quota", "suspend", "resume", "resume", "evict", "hold", "release", "interrupt", "config")
        )
        if kind == "config":
            changes = random.choice(
                (
                    {"time_quantum": 0.05},
                    {"time_quantum": 0.2},
                    {"idle_release": 0.02},
                    {"max_wait": 5},
                    {"overrun": random.choice(("wait", "interrupt", *["join"] * self.host.shared))},
                )
            )
            self.host.users.append(User(self.host, 0, {"type": "config", "changes": changes}))
            return
        extra: dict[str, Any] = {}
        if kind == "quota":
            extra = {"changes": random.choice(QUOTAS)}
        elif kind == "hold":
            extra = {"seconds": random.choice((0.0, 0.3, 2.0))}
        self.host.ask(client, {"type": kind, **extra})

    # --- the end

    def end(self) -> None:
        """No more of it happens."""
        self.alive = False
        for liar in self._liars:
            liar.die()
        self._liars.clear()

    def heal(self) -> None:
        """All that was wrong is right again; who lies is gone."""
        host = self.host
        host.tell("all faults heal")
        host.kill_while_speaking = host.interleave = host.preemption = 0.0
        self.end()
        for uuid in host.devices:
            host.unlock_outside(uuid)
        if host.coordinator is None:
            host.start_coordinator()
        elif host.coordinator.stopped:
            self.clock.go_on(host.coordinator)
        for client in host.clients.values():
            client.talk = None
            for agent in client.agents:
                if agent.stopped:
                    host.go_on(agent)
            for _ in range(client.ranks - len(client.agents)):
                client.start()
