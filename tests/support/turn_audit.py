"""Checker of turns by the calls of the processes, independent of the state of any coordinator."""

from __future__ import annotations

import hashlib
import os
from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from jupyter_gpushare.agent.link import Connection
from jupyter_gpushare.agent.lock_files import LockFiles, open_lock
from jupyter_gpushare.agent.rule import native

from .simulated_process import SimulatedProcess
from .simulated_program import Collective, WorkloadProfile
from .virtual_clock import EventOwner, VirtualClock

# A free device with a process that may enter: the process tries every 20 ms, and timers are late.
MAX_IDLE_SECONDS = 0.1
CHECK_SECONDS = 0.005
MAX_LOGGED_EVENTS = 400


class Violation(AssertionError):
    """Error about a broken invariant."""


@dataclass(eq=False)
class SimulatedClient:
    """Client with its processes."""

    host: TurnAudit
    name: str
    uid: int
    devices: tuple[str, ...]
    profile: WorkloadProfile
    quota: str = ""
    token: str = "secret"
    agents: list[SimulatedProcess] = field(default_factory=list)
    process_count: int = 1  # number of processes without faults
    _collectives: list[Collective] = field(default_factory=list)

    def start(self) -> SimulatedProcess:
        agent = self.host.process_type(self.host, self, self.host.next_pid(), self.devices)
        self.agents.append(agent)
        return agent

    def start_collective(self, first: SimulatedProcess) -> None:
        """Let each process that shares turns with `first` make one call; the work of each ends when all have."""
        ranks = [agent for agent in self.agents if agent.client_page.inode == first.client_page.inode]
        if len(self._collectives) < 2:
            found = Collective({agent.pid for agent in ranks})
            self._collectives.append(found)
            for agent in ranks:
                agent.program.join_collective(found)

    def finish_collectives(self) -> None:
        """Finish collectives without missing calls."""
        self._collectives = [one for one in self._collectives if one.missing]
        for agent in self.agents:
            agent.program.update_collectives()

    def on_process_ended(self, agent: SimulatedProcess) -> None:
        """Remove a process that has ended, and stop waiting for its calls."""
        self.agents.remove(agent)
        for one in self._collectives:
            one.missing.discard(agent.pid)
        self.finish_collectives()


class TurnAudit:
    """Devices and processes of a host, with checks of their turns.

    `preemption` is the probability that a process loses the processor between two visible stores.
    """

    process_type = SimulatedProcess
    memory = 8 << 30
    rings_doorbell = False  # True if a doorbell follows each new permit

    def __init__(self, seed: int, devices: int, rule: Any = None) -> None:
        self.random = Random(seed)
        self.clock = VirtualClock()
        self.rule = rule or native()
        self.devices = tuple(f"GPU-{number}" for number in range(devices))
        self.clients: dict[str, SimulatedClient] = {}
        self.preemption = 0.0
        self.turns = 0  # turns with at least one call
        self.moves: Counter[str] = Counter()  # of processes by the driver, by outcome
        self.event_log: deque[tuple[float, str]] = deque(maxlen=MAX_LOGGED_EVENTS)
        self._digest = hashlib.blake2b(digest_size=8)
        self._pids = 1 << 22  # above the pids of this machine
        self._by_pid: dict[int, SimulatedProcess] = {}
        self._agents_by_device: dict[str, list[SimulatedProcess]] = {uuid: [] for uuid in self.devices}
        self._probes = {uuid: open_lock(uuid) for uuid in self.devices}
        self._other_coordinator_locks: dict[str, LockFiles] = {}
        self._free_since: dict[int, float] = {}  # by pid
        self._used_turns: dict[int, int] = {}  # by pid: turn of the last call

    def fork_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    def next_pid(self) -> int:
        self._pids += 1
        return self._pids

    def log_event(self, what: str) -> None:
        self.event_log.append((self.clock.now, what))
        self._digest.update(f"{self.clock.now!r} {what}".encode())

    def digest(self) -> str:
        """Return a digest of all events."""
        return self._digest.hexdigest()

    def agents(self) -> list[SimulatedProcess]:
        return [agent for client in self.clients.values() for agent in client.agents]

    # --- methods that processes call

    def connect(self, agent: SimulatedProcess) -> Connection | None:
        """Return a connection, or None if no coordinator listens."""
        return None

    def on_refused(self, agent: SimulatedProcess, message: dict[str, Any]) -> None:
        """Handle the refusal of a process by a coordinator."""

    def on_welcome(self, agent: SimulatedProcess) -> None:
        """Handle the welcome of a process by a coordinator."""

    def is_preempted(self, agent: SimulatedProcess) -> bool:
        return agent.random.random() < self.preemption

    def on_stepped(self, agent: SimulatedProcess) -> None:
        """Check a process after its step."""

    def free_bytes(self, agent: SimulatedProcess) -> int:
        """Return the free bytes of the device."""
        return self.memory

    def on_bell(self, uuid: str) -> None:
        for agent in self.agents():
            if agent.polled_bell == uuid:
                agent.wake()

    def on_started(self, agent: SimulatedProcess) -> None:
        self._by_pid[agent.pid] = agent
        for uuid in agent.devices:
            self._agents_by_device[uuid].append(agent)

    def change_devices(self, agent: SimulatedProcess, devices: tuple[str, ...]) -> None:
        """Let a process, and later processes of its client, use other devices."""
        for uuid in agent.devices:
            self._agents_by_device[uuid].remove(agent)
        agent.devices = agent.client.devices = devices
        for uuid in devices:
            self._agents_by_device[uuid].append(agent)

    def end(self, agent: SimulatedProcess) -> None:
        """End a process."""
        self.log_event(f"{agent} ends")
        del self._by_pid[agent.pid]
        self._used_turns.pop(agent.pid, None)
        self._free_since.pop(agent.pid, None)
        for uuid in agent.devices:
            self._agents_by_device[uuid].remove(agent)
        agent.die()
        agent.client.on_process_ended(agent)

    def stop(self, owner: EventOwner) -> None:
        self.log_event(f"{owner} is stopped")
        self.clock.stop(owner)

    def resume(self, owner: EventOwner) -> None:
        self.log_event(f"{owner} is resumed")
        self.clock.resume(owner)

    # --- locks

    def is_free(self, uuid: str) -> bool:
        """Return whether no process is in a turn on the device, by the state of the processes."""
        return uuid not in self._other_coordinator_locks and not any(
            uuid in agent.locks.entered for agent in self._by_pid.values()
        )

    def has_lock(self, agent: SimulatedProcess, uuid: str) -> bool:
        """Return whether the process is in its turn on the device, by the lock."""
        return uuid in agent.locks.entered and bool(self.rule.turn_has_others(self._probes[uuid], agent.turn.turn))

    def lock_as_other_coordinator(self, uuid: str) -> bool:
        """Lock the device as a client of another user's coordinator, and return False if that is not possible."""
        if uuid in self._other_coordinator_locks:
            return False
        locks = LockFiles(self.rule)
        if not locks.enter([uuid], self.random.randrange(1 << 32, 1 << 62), False):
            locks.close()
            return False
        self.log_event(f"{uuid} is locked by a client of another coordinator")
        self._other_coordinator_locks[uuid] = locks
        for agent in self._agents_by_device[uuid]:
            if agent.is_working:
                raise Violation(f"{agent} works on {uuid} without its lock")
        return True

    def unlock_as_other_coordinator(self, uuid: str) -> None:
        if locks := self._other_coordinator_locks.pop(uuid, None):
            self.log_event(f"{uuid} is free again")
            locks.close()

    # --- checks

    def on_call(self, agent: SimulatedProcess) -> None:
        """Check a call that passes the gate."""
        turn = agent.turn.turn
        if self._used_turns.get(agent.pid) != turn:
            self._used_turns[agent.pid] = turn
            self.turns += 1
        for uuid in agent.devices:
            if not self.has_lock(agent, uuid):
                raise Violation(f"{agent} makes a call in turn {turn:#x} on {uuid} without being in it by the lock")
            for other in self._agents_by_device[uuid]:
                if other.is_working and other.turn.turn != turn:
                    raise Violation(f"{agent} makes a call in turn {turn:#x} on {uuid}, where {other.describe()}")

    def on_leave(self, agent: SimulatedProcess, turn: int) -> None:
        """Check a process that is about to leave its turn."""
        if agent.is_working:
            raise Violation(f"{agent} leaves turn {turn:#x} while it works")

    def check_idle_devices(self, owner: EventOwner) -> None:
        """Check periodically that no device is idle while a process may enter."""
        self.clock.schedule(self.clock.now + CHECK_SECONDS, owner, self.check_idle_devices, owner)
        now = self.clock.now
        for agent in self.agents():
            if not agent.may_enter or agent.stopped or not all(map(self.is_free, agent.devices_to_enter())):
                self._free_since[agent.pid] = now
            elif now - self._free_since.setdefault(agent.pid, now) > MAX_IDLE_SECONDS:
                raise Violation(
                    f"{agent.describe()} has not entered in {MAX_IDLE_SECONDS} s though its devices are free"
                )

    # --- the end

    def close(self) -> None:
        for agent in list(self._by_pid.values()):
            self.end(agent)
        for uuid in list(self._other_coordinator_locks):
            self.unlock_as_other_coordinator(uuid)
        for descriptor in self._probes.values():
            os.close(descriptor)
