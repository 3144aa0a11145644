"""Fault injector with the faults of a storm, their rates, and their ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..support.virtual_clock import EventOwner
from .external_actors import HostileProcess, RequestClient
from .simulated_sockets import MessageFaults

if TYPE_CHECKING:
    from ..support.simulated_process import SimulatedProcess
    from ..support.turn_audit import SimulatedClient
    from .simulated_host import FaultHost

QUOTAS: tuple[dict[str, Any], ...] = (
    {"limit": 0.3, "share": 0.0},
    {"limit": 1.0, "share": 0.2},
    {"limit": 1.0, "share": 0.0, "service": "offline"},
    {"limit": 1.0, "share": 0.0, "service": "online", "memory": "2GiB", "resident": "1GiB"},
    {"limit": 1.0, "share": 0.0, "service": "online", "memory": None, "resident": None},
)


class FaultInjector(EventOwner):
    """Injector of random faults until `heal`. The host's seed determines the kinds of faults and their rates."""

    def __init__(self, host: FaultHost, kinds: tuple[str, ...] | None = None) -> None:
        super().__init__()
        self.host, self.clock = host, host.clock
        self.random = host.fork_random()
        self._hostile_processes: list[HostileProcess] = []
        rates: dict[str, tuple[Callable[[], object], float]] = {
            "kill": (self._kill, 0.5),
            "leave": (self._end_client, 0.1),
            "stop": (self._stop, 0.5),
            "disconnect": (self._disconnect, 0.3),
            "coordinator": (self._kill_coordinator, 0.3),
            "stop_coordinator": (self._stop_coordinator, 0.15),
            "kill_while_sending": (self._kill_while_sending, 0.1),
            "other_coordinator": (self._lock_as_other_coordinator, 0.3),
            "message_faults": (self._inject_message_faults, 0.5),
            "hostile_process": (self._toggle_hostile_process, 0.2),
            "user": (self._send_random_request, 2.0),
            "runaway": (self._runaway, 0.4),
            "host_memory": (self._limit_host_memory, 0.3),
            "context_memory": (self._change_context_memory, 0.3),
        }
        random = self.random
        self.kinds = tuple(kind for kind in rates if (random.random() < 0.5 if kinds is None else kind in kinds))
        self.faults = dict.fromkeys(self.kinds, 0)
        intensity = random.choice((0.5, 1.0, 3.0))
        host.log_event(f"storm of {', '.join(self.kinds)}, {intensity}")
        host.preemption = random.choice((0.0, 0.02, 0.2))
        host.interleave_probability = random.choice((0.0, 0.0, 0.05))
        for kind in self.kinds:
            self._schedule(kind, rates[kind][0], rates[kind][1] * intensity)

    def _schedule(self, kind: str, fault: Callable[[], object], rate: float) -> None:
        def inject() -> None:
            self.faults[kind] += 1
            fault()
            self._schedule(kind, fault, rate)

        self.clock.schedule(self.clock.now + self.random.expovariate(rate), self, inject)

    def _after(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.clock.schedule(self.clock.now + seconds, self, callback, *args)

    def _random_client(self) -> SimulatedClient:
        return self.random.choice(list(self.host.clients.values()))

    def _random_agent(self) -> SimulatedProcess | None:
        agents = self.host.agents()
        return self.random.choice(agents) if agents else None

    # --- processes

    def _kill(self) -> None:
        if agent := self._random_agent():
            self.host.end(agent)
            self._after(self.random.expovariate(1.0), self._start, agent.client)

    def _start(self, client: SimulatedClient) -> None:
        if len(client.agents) < client.process_count:
            client.start()

    def _end_client(self) -> None:
        """End all processes of a client at once; a new client may get its name."""
        client = self._random_client()
        for agent in list(client.agents):
            self.host.end(agent)
        if self.random.random() < 0.5:
            self.host.send_user_request(client, {"type": "unregister"})
        self._after(self.random.expovariate(0.5), self._start, client)

    def _stop(self) -> None:
        agent = self._random_agent()
        if agent and not agent.stopped:
            self.host.stop(agent)
            seconds = self.random.choice((0.003, 0.3, 3.0)) * self.random.expovariate(1.0)
            self._after(seconds, self._resume, agent)

    def _resume(self, agent: SimulatedProcess) -> None:
        if agent.alive and agent.stopped:
            self.host.resume(agent)

    def _disconnect(self) -> None:
        agent = self._random_agent()
        if agent and agent.link.connection and not agent.stopped:
            self.host.log_event(f"{agent} loses its connection")
            agent.link.disconnect()

    def _runaway(self) -> None:
        """Submit work that takes very long."""
        if agent := self._random_agent():
            seconds = self.random.choice((0.5, 5.0))
            self.host.log_event(f"{agent} runs for {seconds} s")
            agent.program.submit_long_work(seconds)

    def _limit_host_memory(self) -> None:
        """Limit the host memory for evicted memory of half of the processes, or end the limit."""
        self.host.host_memory = self.random.choice((None, 0, 1 << 30, 8 << 30))
        self.host.log_event(f"host memory for evicted memory: {self.host.host_memory}")

    def _change_context_memory(self) -> None:
        """Change the context memory on each device, which no coordinator counts.

        Such memory stays when the faults heal, because programs keep their contexts.
        """
        self.host.driver_bytes = self.random.choice((0, 1 << 30, 3 << 30, 5 << 30))
        self.host.log_event(f"context memory: {self.host.driver_bytes}")

    # --- coordinators

    def _kill_coordinator(self) -> None:
        if self.host.coordinator:
            self.host.kill_coordinator()
            away = self.random.choice((0.0, 0.05, 1.0, 4.0)) * self.random.expovariate(1.0)
            self._after(away, self._start_coordinator)

    def _start_coordinator(self) -> None:
        if self.host.coordinator is None:
            self.host.start_coordinator()

    def _stop_coordinator(self) -> None:
        coordinator = self.host.coordinator
        if coordinator and not coordinator.stopped:
            self.host.stop(coordinator)
            self._after(
                self.random.choice((0.01, 0.5, 4.0)) * self.random.expovariate(1.0),
                self._resume_coordinator,
                coordinator,
            )

    def _resume_coordinator(self, coordinator: EventOwner) -> None:
        if coordinator.alive and coordinator.stopped:
            self.host.resume(coordinator)

    def _kill_while_sending(self) -> None:
        """Kill the coordinator while it sends one of its next lines."""
        self.host.kill_probability = 0.1
        self._after(2.0, self._start_coordinator)
        self._after(1.0, self._stop_killing_while_sending)

    def _stop_killing_while_sending(self) -> None:
        self.host.kill_probability = 0.0

    # --- other actors

    def _lock_as_other_coordinator(self) -> None:
        uuid = self.random.choice(self.host.devices)
        if self.host.lock_as_other_coordinator(uuid):
            self._after(self.random.expovariate(2.0), self.host.unlock_as_other_coordinator, uuid)

    def _inject_message_faults(self) -> None:
        client = self._random_client()
        random = self.random
        client.message_faults = MessageFaults(*(random.choice((0.0, 0.1, 0.5)) * 0.6 for _ in range(3)))
        self.host.log_event(f"{client.name} sends faulty lines: {client.message_faults}")
        self._after(random.expovariate(0.5), self._clear_message_faults, client)

    def _clear_message_faults(self, client: SimulatedClient) -> None:
        client.message_faults = None

    def _toggle_hostile_process(self) -> None:
        if len(self._hostile_processes) < 2:
            devices = tuple(sorted(self.random.sample(self.host.devices, 1)))
            self._hostile_processes.append(HostileProcess(self.host, self.random.choice((1000, 1001)), devices))
        else:
            self._hostile_processes.pop(0).die()

    def _send_random_request(self) -> None:
        """Send a random request of a user or an admin."""
        random = self.random
        client = self._random_client()
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
            self.host.requests.append(RequestClient(self.host, 0, {"type": "config", "changes": changes}))
            return
        extra: dict[str, Any] = {}
        if kind == "quota":
            extra = {"changes": random.choice(QUOTAS)}
        elif kind == "hold":
            extra = {"seconds": random.choice((0.0, 0.3, 2.0))}
        self.host.send_user_request(client, {"type": kind, **extra})

    # --- the end

    def end(self) -> None:
        """End all faults without healing them."""
        self.alive = False
        for process in self._hostile_processes:
            process.die()
        self._hostile_processes.clear()

    def heal(self) -> None:
        """End all faults, repair their effects, and remove hostile processes."""
        host = self.host
        host.log_event("all faults heal")
        host.kill_probability = host.interleave_probability = host.preemption = 0.0
        host.host_memory = None
        self.end()
        for uuid in host.devices:
            host.unlock_as_other_coordinator(uuid)
        if host.coordinator is None:
            host.start_coordinator()
        elif host.coordinator.stopped:
            self.clock.resume(host.coordinator)
        for client in host.clients.values():
            client.message_faults = None
            for agent in client.agents:
                if agent.stopped:
                    host.resume(agent)
            for _ in range(client.process_count - len(client.agents)):
                client.start()
