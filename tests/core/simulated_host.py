"""Simulated host in virtual time: the scheduler, processes with the real agent rule, and an edge between them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.base.device_info import DeviceInfo, ReportedTurn
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.views.invariants import check

from .device_locks import DeviceLocks
from .simulated_moves import SimulatedMoves
from .simulated_process import CLOSED, OPEN, SimulatedProcess


def baseline(**settings: Any) -> Settings:
    """Return settings for most tests: turns of a fixed length, first come, first served, one client at a time."""
    plain = {"time_quantum": 30.0, "policy": "fcfs", "sharing": "exclusive", "idle_release": 0.25}
    return Settings(**{**plain, **settings})


def host_of(*devices: str, **settings: Any) -> SimulatedHost:
    """Return a host with these devices and the baseline's settings, except for the given settings."""
    host = SimulatedHost(baseline(**settings))
    for uuid in devices:
        host.add_device(uuid)
    return host


@dataclass
class SimulatedHost:
    """A host with its devices, clients and processes. `turns` is that of DeviceLocks."""

    settings: Settings = field(default_factory=lambda: baseline())
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.settings)
        self.log: list[tuple[float, ev.Event]] = []
        self.commands: list[cmd.Command] = []
        self.timeline: list[tuple[float, cmd.Command]] = []
        self.processes: dict[int, SimulatedProcess] = {}
        self.permits: dict[str, cmd.Permit] = {}  # by client: the permit on its pages
        self.locks = DeviceLocks()
        self.turns = self.locks.turns
        self.devices: list[str] = []
        self.report_delay = 0.0  # seconds from the end of a turn to the arrival of its report
        self.moves = SimulatedMoves(self)
        self.ignores_reports = False  # the coordinator reads no reports
        self.taken_when_free: set[str] = set()  # devices that another user locks as soon as they are free
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.numbers = itertools.count(1)
        self._woken: deque[SimulatedProcess] = deque()
        self._is_stepping = False
        self._unread: list[Any] = []  # reports that came while the coordinator read none

    # --- events

    def add_device(self, uuid: str) -> str:
        self.devices.append(uuid)
        self.locks.add_device(uuid)
        self.handle_event(ev.DeviceFound(DeviceInfo(uuid, uuid, 1 << 30)))
        return uuid

    def add_client(self, name: str, quota: Quota | None = None, gpus: int = 1, user: str = "1000") -> str:
        self.handle_event(ev.ClientRegistered(name, user, name, quota or Quota(), gpus))
        return name

    def add_process(
        self, client: str, *devices: str, busy: bool = False, waiting: bool = False, drains_in: float = 0.0
    ) -> SimulatedProcess:
        """Return a process that has just initialised CUDA. The client is registered if it is new."""
        if client not in self.scheduler.clients:
            self.add_client(client)
        process = self._make_process(client, devices or self.devices[:1], drains_in, busy)
        self.handle_event(ev.ProcessJoined(client, process.number, process.devices))
        if busy or waiting:
            self.wait_at_gate(process)
        return process

    def adopt(
        self, client: str, *devices: str, turn: int, phase: str = OPEN, drains_in: float = 0.0
    ) -> SimulatedProcess:
        """Return a process in `turn`, which an earlier coordinator admitted, with its devices locked."""
        if client not in self.scheduler.clients:
            self.add_client(client)
        process = self._make_process(client, devices, drains_in, False)
        assert self.enter(process, sorted(devices), turn, False), f"{devices} are locked"
        process.adopt_turn(turn, phase, self.now)
        self.handle_event(ev.ProcessJoined(client, process.number, process.devices, ReportedTurn(turn, phase == OPEN)))
        return process

    def _make_process(self, client: str, devices: Any, drains_in: float, busy: bool) -> SimulatedProcess:
        process = SimulatedProcess(next(self.numbers), client, tuple(sorted(devices)), drains_in, busy)
        self.processes[process.number] = process
        return process

    def start_client(
        self, client: str, user: str = "", busy: bool = True, drains_in: float = 0.0, **quota: Any
    ) -> SimulatedProcess:
        """Return a process of a new client, which has a user of its own unless `user` is given."""
        self.add_client(client, Quota(**quota), user=user or client)
        return self.add_process(client, busy=busy, drains_in=drains_in)

    def start_busy(self, *clients: str) -> list[SimulatedProcess]:
        """Start a process per client that always requests the first device."""
        return [self.add_process(client, busy=True) for client in clients]

    def wait_at_gate(self, *processes: SimulatedProcess) -> None:
        """Let a thread of each process submit work: the thread passes an open gate or stops at it."""
        for process in processes:
            if not process.is_open and process.alive and not process.waits:
                process.waits = True
                self.wake(process)

    def stop_waiting(self, process: SimulatedProcess) -> None:
        if process.waits:
            process.waits = False
            self.wake(process)

    def report_memory(
        self,
        client: str,
        allocated: int,
        resident: int | None = None,
        unmovable: int = 0,
        unmet_bytes: int = 0,
        unbacked: int = 0,
        context: int = 0,
        unmade: int = 0,
        can_spill: bool = False,
    ) -> list[cmd.Command]:
        """Report the client's memory, all of which is on the device unless `resident` is given."""
        there = allocated if resident is None else resident
        return self.handle_event(
            ev.MemoryReported(
                client, allocated, there, unmovable, unmet_bytes, unbacked, context, unmade, can_spill=can_spill
            )
        )

    def report_idle(self, process: SimulatedProcess) -> None:
        self.handle_event(ev.ProcessIdle(process.number))

    def report_busy(self, process: SimulatedProcess) -> None:
        self.handle_event(ev.ProcessBusy(process.number))

    def stop_process(self, process: SimulatedProcess) -> None:
        """Stop the process as by a signal: the process does nothing until `continue_process`."""
        process.stopped = True

    def continue_process(self, process: SimulatedProcess) -> None:
        process.stopped = False
        self.wake(process)
        if process.waits:
            self.handle_event(ev.GateWaitStarted(process.number))  # as the edge finds once a second

    def read_reports(self) -> None:
        """Let the coordinator read reports again."""
        self.ignores_reports, unread, self._unread = False, self._unread, []
        for event in unread:
            self._deliver_event(event)

    def finish_work(self, process: SimulatedProcess) -> None:
        """End the process's work on the device."""
        process.drains_in, process.drained_at = 0.0, self.now
        self.wake(process)

    def kill_process(self, process: SimulatedProcess) -> None:
        process.alive = False
        del self.processes[process.number]
        if process.entered:
            self.leave(process, process.turn)
        self.handle_event(ev.ProcessGone(process.number))

    def start_cell(self, client: str, request: str, name: str = "") -> None:
        self.handle_event(ev.CellStarted(client, request, (name,) if name else ()))

    def end_cell(self, client: str, request: str) -> None:
        self.handle_event(ev.CellEnded(client, request))

    def run_cell(
        self, process: SimulatedProcess, length: float, then: Callable[[], object] = lambda: None, name: str = ""
    ) -> None:
        """Run a cell with `length` seconds of work on the device, and call `then` after it."""
        client, device = process.client, process.devices[0]
        before = self.granted_seconds(device)[client]
        process.busy = True

        def check() -> None:
            left = length - (self.granted_seconds(device)[client] - before)
            if left > 1e-9:
                self.call_after(max(left, 0.001), check)
                return
            process.busy = False
            self.stop_waiting(process)
            self.end_cell(client, "cell")
            then()

        self.start_cell(client, "cell", name)
        self.wait_at_gate(process)
        check()

    def lock_by_other(self, uuid: str) -> None:
        """Lock the device for the coordinator of another user."""
        self.locks.lock_by_other(uuid, self.now)

    def unlock_by_other(self, uuid: str, ring: bool = True) -> None:
        self.locks.unlock_by_other(uuid)
        if ring:
            self._ring((uuid,))

    # --- time

    def call_after(self, delay: float, action: Callable[[], None]) -> None:
        self._call_at(self.now + delay, action)

    def _call_at(self, due: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._actions, (due, next(self._order), action))

    def run(self, seconds: float) -> None:
        """Let time pass: the scheduler's deadlines and all planned actions happen in order."""
        self.run_to(self.now + seconds)

    def next_moment(self) -> tuple[float | None, bool]:
        """Return when the next action or deadline comes, and whether an action comes."""
        due = self.scheduler.next_deadline()
        planned = self._actions[0][0] if self._actions else None
        moment = min((time for time in (due, planned) if time is not None), default=None)
        return moment, moment == planned

    def run_to(self, end: float) -> None:
        for _ in range(200_000):
            moment, is_planned = self.next_moment()
            if moment is None or moment > end:
                self.now = end
                return
            self.now = max(self.now, moment)
            if is_planned:
                heapq.heappop(self._actions)[2]()
            else:
                self.handle_event(ev.Tick())
        raise AssertionError(f"time stands still at {self.now}")

    def run_until(self, condition: Callable[[], bool], within: float = 100.0) -> float:
        """Run to the first moment at which `condition` holds, and return how long that took."""
        began = self.now
        while not condition():
            moment, _ = self.next_moment()
            assert moment is not None, f"no further event is planned:\n{self.event_log()}"
            assert moment - began <= within, f"not within {within} s:\n{self.event_log()}"
            self.run_to(max(moment, self.now))
        return self.now - began

    # --- observations

    def phase(self, client: str) -> str:
        return self.scheduler.clients[client].phase

    def running(self, uuid: str | None = None) -> str | None:
        """Return a client whose gates are open on the device; None: no client has an open gate there."""
        open_now = {p.client for p in self.processes.values() if p.is_open and (uuid or p.devices[0]) in p.devices}
        return open_now.pop() if open_now else None

    def queue(self, uuid: str) -> list[str]:
        return [client.id for client in self.scheduler.queue(uuid, self.now)]

    def granted_seconds(self, uuid: str, since: float = 0.0) -> dict[str, float]:
        """Return the seconds for which each client held the device after `since`."""
        return dict.fromkeys(self.scheduler.clients, 0.0) | self.locks.granted_seconds(uuid, since, self.now)

    def fractions(self, seconds: float) -> dict[str, float]:
        """Return each client's fraction of the first device's time in the next `seconds`."""
        since = self.now
        self.run(seconds)
        return {name: held / seconds for name, held in self.granted_seconds(self.devices[0], since).items()}

    def event_log(self) -> str:
        return "\n".join(self.scheduler.event_log())

    # --- the edge

    def handle_event(self, event: ev.Event) -> list[cmd.Command]:
        """Pass an event to the scheduler, carry out the commands, and check the invariants."""
        decided = self.scheduler.handle(event, self.now)
        self.log.append((self.now, event))
        self.commands += decided
        self.timeline += [(self.now, command) for command in decided]
        check(self.scheduler, self.now)
        for command in decided:
            self._carry_out(command)
        self._step_woken()
        return decided

    def _carry_out(self, command: cmd.Command) -> None:
        if isinstance(command, cmd.Permit):
            self.permits[command.client] = command
            for process in self.processes_of(command.client):
                process.write_permit(command)
                self._woken.append(process)
        elif isinstance(command, (cmd.PrepareMove, cmd.StartMove, cmd.FinishMove)):
            self.moves.carry_out(command)
        elif isinstance(command, cmd.CheckUnusedPermit):
            processes = self.processes_of(command.client)
            is_stopped = any(process.stopped for process in processes)
            if is_stopped or any(process.was_refused for process in processes):
                self.call_after(0.0, lambda: self._report_permit_unused(command.client, is_stopped))

    def _report_permit_unused(self, client: str, stopped: bool) -> None:
        if client in self.scheduler.clients:
            self.handle_event(ev.PermitUnused(client, stopped))

    def processes_of(self, client: str) -> list[SimulatedProcess]:
        return [process for process in self.processes.values() if process.client == client]

    def wake(self, process: SimulatedProcess) -> None:
        """Let the process detect that something has happened."""
        self._woken.append(process)
        self._step_woken()

    def _step_woken(self) -> None:
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._woken:
                self._step(self._woken.popleft())
        finally:
            self._is_stepping = False
        self._check_locks()

    def _step(self, process: SimulatedProcess) -> None:
        if not process.alive or process.stopped:
            return
        due = process.step(self)
        if due is not None:
            self._schedule_step(process, due)
        for event in process.reports(self.now):
            self._report_event(event)

    def _schedule_step(self, process: SimulatedProcess, due: float) -> None:
        due = max(due, self.now + 1e-9)
        if due >= process.next_step_at > self.now:
            return
        process.next_step_at = due
        self._call_at(due, lambda: self._on_step_due(process, due))

    def _on_step_due(self, process: SimulatedProcess, due: float) -> None:
        if process.next_step_at == due:
            process.next_step_at = float("inf")
            self.wake(process)

    def siblings_of(self, process: SimulatedProcess) -> list[SimulatedProcess]:
        return [other for other in self.processes_of(process.client) if other is not process]

    def enter(self, process: SimulatedProcess, devices: Sequence[str], turn: int, join: bool) -> bool:
        """Lock all devices for the process's client, or none."""
        has_entered = self.locks.enter(process.client, devices, turn, join, self.now)
        if has_entered:
            process.entered = tuple(devices)
        return has_entered

    def leave(self, process: SimulatedProcess, turn: int) -> None:
        """Unlock the process's devices, except for those of other processes of its client, and ring their bells."""
        devices, process.entered = process.entered, ()
        for uuid in devices:
            if any(uuid in other.entered for other in self.processes_of(process.client)):
                continue
            self.locks.leave(process.client, uuid, turn, self.now)
            if uuid in self.taken_when_free and not self.locks.turn_numbers(uuid):
                self.taken_when_free.remove(uuid)
                self.lock_by_other(uuid)
        self._ring(devices)

    def _ring(self, devices: Sequence[str]) -> None:
        for process in self.processes.values():
            if process.waits and process.gate == CLOSED and set(process.devices) & set(devices):
                process.ring()
                self._woken.append(process)
        self._step_woken()

    def _report_event(self, event: Any) -> None:
        if isinstance(event, ev.EvictionStarted):
            self.moves.on_eviction_started(self.processes[event.process])
        if self.ignores_reports:
            self._unread.append(event)
        elif self.report_delay and isinstance(event, ev.TurnLeft):
            self.call_after(self.report_delay, lambda: self._deliver_event(event))
        else:
            self._deliver_event(event)

    def _deliver_event(self, event: Any) -> None:
        if event.process in self.processes:
            self.handle_event(event)

    def _check_locks(self) -> None:
        """Check that no process runs without the locks of all its devices, and that no two turns mix."""
        for uuid in self.devices:
            turns = self.locks.turn_numbers(uuid)
            assert len(turns) <= 1, f"{turns} have entered {uuid}\n{self.event_log()}"
        for process in self.processes.values():
            is_moving = process.moving_to in process.entered  # with a closed gate, and perhaps on no other device
            missing = () if is_moving and not process.is_open else set(process.devices) - set(process.entered)
            assert not process.is_in_turn or not missing, (
                f"process {process.number} runs without {missing}\n{self.event_log()}"
            )
