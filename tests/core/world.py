"""A host in virtual time: it carries out the scheduler's commands on fake processes, and watches what they see.

Everything that a coordinator's edge does is done here: locks per client and device, gates, answers to a closing. A
process takes `drains_in` seconds to drain, or drains only once its `peer` has been let through the gate (a collective
whose other half is still to come).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import GpuShareError
from jupyter_gpushare.core.invariants import check
from jupyter_gpushare.core.model import DeviceInfo
from jupyter_gpushare.core.quota import Quota
from jupyter_gpushare.core.settings import Settings

OUTSIDER = "another user"
CLOSED, OPEN, CLOSING = "closed", "open", "closing"


def baseline(**settings: Any) -> Settings:
    """Turns of a fixed length, first come, first served, one client at a time: what most tests are about."""
    plain = {"time_quantum": 30.0, "policy": "fcfs", "sharing": "exclusive", "idle_release": 0.25}
    return Settings(**{**plain, **settings})


@dataclass
class FakeProcess:
    """`busy`: it stands at the gate again as soon as it closes; `waits`: a thread of it is there now.

    In each of its next `collectives` openings it submits work that ends only after `peer` has passed the gate again.
    """

    number: int
    client: str
    devices: tuple[str, ...]
    drains_in: float = 0.0
    busy: bool = False
    peer: FakeProcess | None = None
    collectives: int = 0
    gate: str = CLOSED
    epoch: int = 0
    waits: bool = False
    alive: bool = True
    openings: int = 0
    needs_opening: int = 0  # the opening of its peer that its submitted work waits for
    relays: bool = True
    carry: int = 0  # the epoch with which it may open its gate when it has the lock
    hands_on: bool = False  # it gives the lock up when it has drained


@dataclass
class World:
    """`turns` lists (client, from, until) of every stretch in which the client held a lock, per device."""

    settings: Settings = field(default_factory=lambda: baseline())
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.settings)
        self.log: list[tuple[float, ev.Event]] = []
        self.commands: list[cmd.Command] = []
        self.timeline: list[tuple[float, cmd.Command]] = []
        self.processes: dict[int, FakeProcess] = {}
        self.locks: dict[str, tuple[str, float]] = {}  # by device: who holds it alone, and since when
        self.shared: dict[str, dict[str, float]] = {}  # by device: who holds it beside others
        self.turns: dict[str, list[tuple[str, float, float]]] = {}
        self.devices: list[str] = []
        self.news_late = 0.0  # how long "drained" is on its way
        self.slip_in: set[str] = set()  # devices that another user locks as soon as they are free
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)

    # --- what happens

    def device(self, uuid: str) -> str:
        self.devices.append(uuid)
        self.turns[uuid] = []
        self.shared[uuid] = {}
        self.feed(ev.DeviceFound(DeviceInfo(uuid, uuid, 1 << 30)))
        return uuid

    def client(self, name: str, quota: Quota | None = None, gpus: int = 1, tenant: str = "1000") -> str:
        self.feed(ev.ClientRegistered(name, tenant, name, quota or Quota(), gpus))
        return name

    def process(
        self, client: str, *devices: str, busy: bool = False, drains_in: float = 0.0, relays: bool = True
    ) -> FakeProcess:
        """A process of the client (registered if need be) that has just initialised CUDA."""
        if client not in self.scheduler.clients:
            self.client(client)
        process = FakeProcess(next(self._numbers), client, tuple(sorted(devices or self.devices[:1])), drains_in, busy)
        process.relays = relays
        self.processes[process.number] = process
        self.feed(ev.ProcessJoined(client, process.number, process.devices, relays=relays))
        if busy:
            self.want(process)
        return process

    def adopt(self, client: str, *devices: str, epoch: int, running: bool = True) -> FakeProcess:
        """A process that an earlier coordinator gave `epoch`; if `running`, its gate is open, its devices locked."""
        if client not in self.scheduler.clients:
            self.client(client)
        process = FakeProcess(next(self._numbers), client, tuple(sorted(devices)), epoch=epoch)
        process.gate = OPEN if running else CLOSED
        self.processes[process.number] = process
        shared = any(client in self.shared[uuid] for uuid in process.devices)
        if running:
            assert self.free_for(client, process.devices, shared), f"{process.devices} are locked"
            self._lock(client, process.devices, shared)
        self.feed(ev.ProcessJoined(client, process.number, process.devices, running, epoch, relays=True, shared=shared))
        return process

    def want(self, process: FakeProcess) -> None:
        """A thread submits work: it passes an open gate, else it stands there and the process says so once."""
        if process.gate != OPEN and process.alive and not process.waits:
            process.waits = True
            self.feed(ev.Wanted(process.number))

    def unwant(self, process: FakeProcess) -> None:
        if process.waits:
            process.waits = False
            self.feed(ev.Unwanted(process.number))

    def idle(self, process: FakeProcess) -> None:
        self.feed(ev.WentIdle(process.number, process.epoch))

    def works_again(self, process: FakeProcess) -> None:
        self.feed(ev.WentBusy(process.number, process.epoch))

    def close_by_itself(self, process: FakeProcess) -> None:
        """Its agent closes at the deadline that it was told, without being asked; threads begin to wait after it."""
        process.gate = CLOSING
        self.at(process.drains_in, lambda: self._drain(process, process.epoch))
        if process.busy:
            self.at(process.drains_in, lambda: self.want(process))

    def kill(self, process: FakeProcess) -> None:
        process.alive = False
        del self.processes[process.number]
        if not any(other.client == process.client for other in self.processes.values()):
            self._unlock(process.client, [uuid for uuid in self.devices if process.client in self.holders(uuid)])
            self._take_over()
        self.feed(ev.ProcessGone(process.number))

    def start_cell(self, client: str, request: str) -> None:
        self.feed(ev.CellStarted(client, request))

    def end_cell(self, client: str, request: str) -> None:
        self.feed(ev.CellEnded(client, request))

    def lock_elsewhere(self, uuid: str) -> None:
        """Another user's coordinator takes the device."""
        assert not self.holders(uuid)
        self.locks[uuid] = (OUTSIDER, self.now)

    def unlock_elsewhere(self, uuid: str) -> None:
        assert self.locks.pop(uuid)[0] == OUTSIDER

    # --- time

    def at(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now + delay, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let time pass: the scheduler's deadlines and everything on the agenda happen in order."""
        self.run_to(self.now + seconds)

    def run_to(self, end: float) -> None:
        for _ in range(200_000):
            due = self.scheduler.next_deadline()
            planned = self._agenda[0][0] if self._agenda else None
            moment = min((time for time in (due, planned) if time is not None), default=None)
            if moment is None or moment > end:
                self.now = end
                return
            self.now = max(self.now, moment)
            if planned == moment:
                heapq.heappop(self._agenda)[2]()
            else:
                self.feed(ev.TimePassed())
        raise AssertionError(f"time stands still at {self.now}")

    def run_until(self, condition: Callable[[], bool], within: float = 100.0) -> float:
        """Run to the first moment at which `condition` holds; returns how long that took."""
        began = self.now
        while not condition():
            due = self.scheduler.next_deadline()
            planned = self._agenda[0][0] if self._agenda else None
            moment = min((time for time in (due, planned) if time is not None), default=None)
            assert moment is not None, f"nothing will happen any more:\n{self.story()}"
            assert moment - began <= within, f"not within {within} s:\n{self.story()}"
            self.run_to(max(moment, self.now))
        return self.now - began

    # --- what one sees

    def phase(self, client: str) -> str:
        return self.scheduler.clients[client].phase

    def running(self, uuid: str | None = None) -> str | None:
        """Whose gates are open on the device; one of them, if they are several."""
        open_now = {p.client for p in self.processes.values() if p.gate == OPEN and (uuid or p.devices[0]) in p.devices}
        return open_now.pop() if open_now else None

    def queue(self, uuid: str) -> list[str]:
        return [client.id for client in self.scheduler.queue(uuid, self.now)]

    def holders(self, uuid: str) -> dict[str, float]:
        """Who holds the device's lock, and since when."""
        return {**self.shared[uuid], **dict([self.locks[uuid]] if uuid in self.locks else [])}

    def held(self, uuid: str, since: float = 0.0) -> dict[str, float]:
        """Seconds for which each client has held the device after `since`."""
        seconds = dict.fromkeys(self.scheduler.clients, 0.0)
        now = [(client, began, self.now) for client, began in self.holders(uuid).items()]
        for client, began, ended in [*self.turns[uuid], *now]:
            seconds[client] = seconds.get(client, 0.0) + max(0.0, ended - max(began, since))
        return seconds

    def order(self, uuid: str) -> list[str]:
        """Who held the device, in order; a client that holds it now comes last."""
        held = [client for client, _, _ in self.turns[uuid]]
        return [*held, self.locks[uuid][0]] if uuid in self.locks else held

    def story(self) -> str:
        return "\n".join(self.scheduler.story())

    # --- the edge

    def feed(self, event: ev.Event) -> list[cmd.Command]:
        """Hand an event to the scheduler, carry out its commands, and check everything afterwards."""
        self.log.append((self.now, event))
        try:
            decided = self.scheduler.handle(event, self.now)
        except GpuShareError:
            self.log.pop()
            raise
        self.commands += decided
        self.timeline += [(self.now, command) for command in decided]
        consequences = [event for command in decided for event in self._carry_out(command)]
        for consequence in consequences:
            self.feed(consequence)
        if not consequences:
            check(self.scheduler, self.now)
            self._check_host()
        return decided

    def _carry_out(self, command: cmd.Command) -> list[ev.Event]:
        match command:
            case cmd.Grant():
                if not self.free_for(command.client, command.devices, command.shared):
                    self._close_strays(command)
                    return [ev.LockRefused(command.client, command.epoch)]
                self._lock(command.client, command.devices, command.shared)
                self._open(command.epoch, command.processes)
            case cmd.Open():
                grant = self.scheduler.clients[command.client].grant
                if not grant or not self.free_for(
                    command.client, grant.devices, grant.shared
                ):  # handed on before it could be reopened
                    return [ev.Drained(n, command.epoch) for n in command.processes if self.processes[n].gate == CLOSED]
                self._lock(command.client, grant.devices, grant.shared)
                self._open(command.epoch, command.processes)
            case cmd.NameNext():
                self.processes[command.process].carry = command.epoch
                self.processes[command.giver].hands_on = True
            case cmd.Unname():
                self._unname(command)
            case cmd.Close():
                for number in command.processes:
                    self._close(self.processes[number], command.epoch)
            case cmd.Free():
                unfinished = [p.number for p in self._of(command.client) if p.gate != CLOSED and p.alive]
                assert not unfinished, f"freed while processes {unfinished} run\n{self.story()}"
                self._unlock(command.client, command.devices)
        return []

    def _unname(self, command: cmd.Unname) -> None:
        if giver := self.processes.get(command.giver):
            giver.hands_on = False
        if process := self.processes.get(command.process):
            epoch, process.carry = process.carry, 0
            if process.gate == OPEN and process.epoch == epoch:
                self._close(process, epoch)

    def _close_strays(self, command: cmd.Grant) -> None:
        for number in command.processes:
            self.processes[number].carry = 0
        for process in self.processes.values():
            ungranted = self.scheduler.clients[process.client].grant is None
            if ungranted and process.gate == OPEN and set(process.devices) & set(command.devices):
                self._close(process, process.epoch)

    def _take_over(self) -> None:
        """Whoever was named and waits gets the lock that is free."""
        for process in self.processes.values():
            if process.carry and process.waits and process.gate == CLOSED and not self.holders(process.devices[0]):
                self._lock(process.client, process.devices, shared=False)
                self._open(process.carry, (process.number,))

    def _open(self, epoch: int, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            process = self.processes[number]
            again = process.epoch == epoch and process.gate == OPEN
            assert not again or process.carry == epoch, f"{number} opened twice\n{self.story()}"
            process.gate, process.epoch, process.waits = OPEN, epoch, False
            process.hands_on = False
            process.openings += not again
            if again:
                process.carry = 0
        for number in numbers:
            process = self.processes[number]
            if process.peer and process.collectives:
                process.collectives -= 1
                process.needs_opening = process.peer.openings + 1

    def _close(self, process: FakeProcess, epoch: int) -> None:
        if process.gate == CLOSED:  # drained, and the news of it on their way: there is nothing to close
            process.epoch = epoch
            self.at(
                0.0, lambda: process.epoch == epoch and process.gate == CLOSED and self._say_drained(process, epoch)
            )
            return
        process.gate, process.epoch = CLOSING, epoch
        if process.busy:
            self.at(0.0, lambda: self.want(process))
        self.at(process.drains_in, lambda: self._drain(process, epoch))

    def _drain(self, process: FakeProcess, epoch: int) -> None:
        if not process.alive or process.gate != CLOSING or process.epoch != epoch:
            return
        if process.peer and process.peer.alive and process.peer.openings < process.needs_opening:
            self.at(0.001, lambda: self._drain(process, epoch))
            return
        process.gate = CLOSED
        if process.hands_on:
            self._unlock(process.client, process.devices)
            self._take_over()
        if self.news_late:
            self.at(self.news_late, lambda: self._say_drained(process, epoch))
        else:
            self._say_drained(process, epoch)

    def _say_drained(self, process: FakeProcess, epoch: int) -> None:
        if not process.alive:
            return
        self.feed(ev.Drained(process.number, epoch))
        if self.scheduler.clients[process.client].grant is None and all(
            other.gate == CLOSED for other in self._of(process.client)
        ):
            self._unlock(process.client, process.devices)  # it had the lock without a grant
            self._take_over()
        if process.waits:
            self.feed(ev.Wanted(process.number))

    def _of(self, client: str) -> list[FakeProcess]:
        return [process for process in self.processes.values() if process.client == client]

    def free_for(self, client: str, uuids: tuple[str, ...], shared: bool) -> bool:
        """Whether nobody else has a lock of these devices that keeps the client out."""
        taken = {self.locks[uuid][0] for uuid in uuids if uuid in self.locks}
        if not shared:
            taken.update(*(self.shared[uuid] for uuid in uuids))
        return taken <= {client}

    def _lock(self, client: str, uuids: tuple[str, ...], shared: bool) -> None:
        for uuid in uuids:
            if client in self.holders(uuid):
                continue
            if shared:
                self.shared[uuid][client] = self.now
            else:
                self.locks[uuid] = (client, self.now)

    def _unlock(self, client: str, uuids: tuple[str, ...] | list[str]) -> None:
        for uuid in uuids:
            since = self.holders(uuid).get(client)
            if since is not None:
                if self.shared[uuid].pop(client, None) is None:
                    del self.locks[uuid]
                self.turns[uuid].append((client, since, self.now))
                if uuid in self.slip_in:
                    self.slip_in.remove(uuid)
                    self.lock_elsewhere(uuid)

    def _check_host(self) -> None:
        """Whatever the scheduler believes: nobody runs without the locks of all its devices."""
        for process in self.processes.values():
            for uuid in process.devices if process.gate != CLOSED else ():
                holders = self.holders(uuid)
                assert process.client in holders, (
                    f"process {process.number} of {process.client} runs on {uuid}, held by {holders}\n{self.story()}"
                )
