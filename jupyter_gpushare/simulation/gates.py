"""The edge: hands events to the scheduler and carries out its commands on simulated processes, as the coordinator's
daemon does on real ones.

The compiled rule decides what a process does about turns. It steps when one of its inputs changes: its permit, the
thread at its gate, the devices' locks, its work, its memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop
from typing import Any

from ..agent import rule
from ..core import Scheduler
from ..core import commands as cmd
from ..core import events as ev
from ..core.settings import Settings
from ..wire.page import CLOSING, CONTENDED, IN, LEAVING, MAY, OUT, RELIEVED
from .agenda import GATE, IDLE, ON_GPU, RESTORE, WORK, SimClient, SimDevice
from .details import Details
from .work import Work
from .workload import Workload

NEVER = float("inf")
_NO_TIME = (1 << 64) - 1  # of `wake_at`
_TIME_PASSED = ev.TimePassed()


class Gates(Work):
    """A scheduler, and the processes that heed its permits by the rule of turns."""

    def __init__(self, workload: Workload, settings: Settings, *, details: Details | None) -> None:
        super().__init__(workload.costs, settings, details)
        self.scheduler = Scheduler(settings)
        self.clients: dict[str, SimClient] = {}
        self.decisions = 0
        self.switches = 0
        self._due = NEVER
        self._numbers = 0
        self._events: deque[ev.Event] = deque()
        self._ahead: list[SimClient] = []
        self._feeding = False
        self.overlap = workload.overlap
        self._handle = self.scheduler.handle
        self._agent_step = rule.native().agent_step
        self._out = rule.ffi.new("struct agent_outputs *")
        self._carry_out: dict[type, Callable[[Any], None]] = {
            cmd.Permit: self._permit,
            cmd.SetResident: self._set_resident,
            cmd.RestoreAhead: self._restore_ahead,
            cmd.SetBudget: self._set_budget,
        }

    # --- the door

    def feed(self, event: ev.Event) -> None:
        """Hand an event to the scheduler and carry out what it decides, including what follows from that.

        Raises Refused for a client that cannot be had.
        """
        self._events.append(event)
        if self._feeding:
            return
        self._feeding = True
        events, carry_out = self._events, self._carry_out
        try:
            while events:
                event = events.popleft()
                commands = self._handle(event, self.now)
                self.decisions += 1
                for command in commands:
                    if action := carry_out.get(type(command)):
                        action(command)
                while self._ahead:
                    self._begin_ahead(self._ahead.pop(0))
        finally:
            self._feeding = False
        due = self.scheduler.next_deadline()
        self._due = NEVER if due is None else due

    def run_to(self, end: float, watch: Callable[[float], None] | None = None) -> None:
        """Let everything up to `end` happen. `watch` is told the time now and then."""
        heap, actions = self._heap, self._actions
        count = 0
        while True:
            planned = heap[0][0] if heap else NEVER
            if self._due < planned:
                if self._due > end:
                    break
                self.now = max(self.now, self._due)
                self.feed(_TIME_PASSED)
            else:
                if planned > end:
                    break
                _, made, kind, client = heappop(heap)
                if client.appointments[kind] != made:
                    continue
                client.appointments[kind] = -1
                self.now = planned
                actions[kind](client)
            count += 1
            if watch is not None and not count & 0xFFF:
                watch(self.now)
        self.handled += count
        self.now = end

    # --- commands

    def _permit(self, command: cmd.Permit) -> None:
        client = self.clients[command.client]
        if not client.number:
            return
        client.permit, permit = command, client.agent.permit
        permit.turn, permit.epoch = command.turn, command.epoch
        permit.devices = (1 << len(command.devices)) - 1
        permit.deadline_ns = round(1e9 * (command.deadline or 0.0))
        permit.flags = MAY * command.may | RELIEVED * command.relieved | CONTENDED * command.contended
        if client.phase == OUT:
            self._try_to_enter(client)
        else:
            self.step(client)

    def _set_resident(self, command: cmd.SetResident) -> None:
        client = self.clients[command.client]
        client.target = command.bytes
        if client.phase == OUT and client.devices:
            before = client.resident
            self.stop_eviction(client)
            if client.target is not None:
                self.stop_restore(client)
            self.leaves_when_idle(client)
            if client.resident != before:
                self.say_held(client)

    def _restore_ahead(self, command: cmd.RestoreAhead) -> None:
        client = self.clients[command.client]
        if command.wanted:
            self._ahead.append(client)
        elif client.phase == OUT and client.moving_in:
            self.stop_restore(client)
            self.say_held(client)

    def _begin_ahead(self, client: SimClient) -> None:
        """After all else that was decided: whoever is granted the device comes first."""
        if client.number:
            self.restore_ahead(client)

    def _set_budget(self, command: cmd.SetBudget) -> None:
        self.limit_rate(self.clients[command.client], command.budget)

    # --- what processes do

    def step(self, client: SimClient, drained: bool = False) -> None:
        """Let the rule decide what the process does, and do that. `drained`: what was submitted has finished."""
        state, inputs, out = client.agent.state, client.agent.inputs, self._out
        before, turn = client.phase, client.turn
        freed: tuple[SimDevice, ...] = ()
        inputs.now = now = round(1e9 * self.now)
        inputs.waiting = before == OUT  # no drain waits for the thread at the gate, so no step is to let it through
        inputs.tried = rule.NOT_TRIED
        if before == IN and client.permit and client.permit.contended:
            inputs.idle_release_ns = round(1e9 * self.idle_release(client))
        while True:
            quiet = drained if client.phase == CLOSING else client.doing != ON_GPU
            inputs.polled = rule.QUIET if quiet else rule.BUSY
            self._agent_step(state, inputs, out)
            acts, client.phase = out.acts, state.report.phase
            if acts & rule.DRAINED:
                self._drained(client)
            if acts & rule.LEAVE:
                freed = self.leave(client)
                break
            inputs.tried = self._enter(client, out.turn) if acts & rule.ENTER else rule.NOT_TRIED
            if not acts & rule.ENTER and out.wake_at > now:
                break
        if client.phase == LEAVING and out.wake_at != _NO_TIME:
            self.at(out.wake_at / 1e9, GATE, client)
        self._stepped(client, before, turn, bool(acts & rule.CHANGED))
        self.let_in(freed)

    def _stepped(self, client: SimClient, before: int, turn: int, changed: bool) -> None:
        """Report what has become of the turn, and go on by that."""
        after = client.phase
        if before == after == IN:
            self._look_for_idleness(client)
        elif before == after == LEAVING and changed:
            self.feed(ev.Evicting(client.number))
        elif before == OUT and after == IN:
            client.turn_began, client.opening = self.now, True
            client.waiting = client.idle = client.quiet = False
            self.stop_eviction(client)
            self.at(self.restore(client, self.now + self.costs.handover), GATE, client)
            self.feed(ev.Began(client.number, client.turn, self.now))
        elif before == IN and after == CLOSING:
            client.appointments[IDLE] = -1
            if not client.opening:
                self._begin_drain(client, self.costs.drain)
        elif before == CLOSING and after == IN:
            client.quiet = False
            if not client.opening:
                self._reopened(client)
        elif before != OUT and after == OUT:
            self.feed(ev.Ended(client.number, turn))

    def _admits(self, client: SimClient) -> bool:
        """Return whether the locks of the client's devices admit the turn that it is permitted."""
        permit = client.permit
        return permit is not None and permit.may and all(one.turn in (0, permit.turn) for one in client.devices)

    def _try_to_enter(self, client: SimClient) -> None:
        """Step, unless the try would be refused."""
        if client.phase == OUT and client.waiting and self._admits(client):
            self.step(client)

    def _enter(self, client: SimClient, turn: int) -> int:
        """Return what has become of the try."""
        if not self._admits(client):
            return rule.REFUSED
        client.turn = turn
        for device in client.devices:
            device.turn = turn
            device.inside[client.index] = client
            if device.last != client.index:
                device.last = client.index
                self.switches += 1
        return rule.ENTERED

    def leave(self, client: SimClient) -> tuple[SimDevice, ...]:
        """Leave the turn, if the client is in one; returns the devices that are free now."""
        if not client.turn:
            return ()
        client.turn, client.phase, client.opening = 0, OUT, False
        client.appointments[GATE] = -1
        for device in client.devices:
            del device.inside[client.index]
            if not device.inside:
                device.turn = 0
        return tuple(device for device in client.devices if not device.turn)

    def let_in(self, freed: tuple[SimDevice, ...]) -> None:
        """Let a permitted client that waits enter."""
        for device in freed:
            for client in list(device.present.values()):
                self._try_to_enter(client)

    def wait(self, client: SimClient) -> None:
        """Its thread stands at the gate."""
        if not client.waiting:
            client.waiting = True
            self.feed(client.wanted)
            self._try_to_enter(client)

    def watch_idleness(self, client: SimClient) -> None:
        """Step if the rule has to know that work has begun, or ended."""
        contended = client.permit is not None and client.permit.contended
        if client.is_open and contended and client.quiet != (client.doing != ON_GPU):
            self.step(client)

    def _look_for_idleness(self, client: SimClient) -> None:
        state, inputs = client.agent.state, client.agent.inputs
        since, idle, was_idle = state.idle_since, bool(state.idle), client.idle
        client.quiet, client.idle = since > 0, idle
        if since and not idle:
            self.at((since + inputs.idle_release_ns + 1) / 1e9, IDLE, client)
        else:
            client.appointments[IDLE] = -1
        if idle != was_idle:
            self.feed(ev.WentIdle(client.number) if idle else ev.WentBusy(client.number))

    def idle_release(self, client: SimClient) -> float:
        return self.scheduler.idle_release(self.scheduler.clients[client.id])

    def _gate(self, client: SimClient) -> None:
        """Its memory has come, what it had submitted has finished, or its memory leaves for long."""
        if client.opening:
            self._opened(client)
        elif client.phase == LEAVING:
            self.step(client)
        elif client.doing == ON_GPU and not client.waiting:
            # All of its phase had been submitted, and a client beside it has slowed it down since.
            self.at(self.now + self.left(client) / client.rate, GATE, client)
        else:
            self.step(client, drained=True)

    def _opened(self, client: SimClient) -> None:
        came = client.moving_in > 0
        if came and (later := self.room_from(client)) > self.now:
            self.at(later, GATE, client)
            return
        if came:
            self.restored(client)
        client.opening = False
        self.go_on(client)
        if client.phase == CLOSING:  # while its memory came: the call that brought it back goes ahead
            self._begin_drain(client, client.spec.launch)
        if came:
            self.say_held(client)
            self.feed(ev.Restored(client.number))

    def _reopened(self, client: SimClient) -> None:
        client.appointments[GATE] = -1
        if client.idle:
            client.idle = False
            self.feed(ev.WentBusy(client.number))
        if client.waiting:
            client.waiting = False
            self.feed(ev.Unwanted(client.number))
        self.go_on(client)

    def go_on(self, client: SimClient) -> None:
        """Its gate is open."""
        if client.doing == ON_GPU:
            self.begin_work(client)
        self.watch_idleness(client)

    def _begin_drain(self, client: SimClient, submitted: float) -> None:
        """`submitted` seconds of work are let finish."""
        if client.worked_at < 0 or client.rate <= 0:
            takes, goes_on = self.costs.scan, client.worked_at >= 0
        else:
            left = self.left(client) / client.rate
            takes = max(submitted, client.spec.launch)
            takes, goes_on = min(takes, left), takes < left
        self.at(self.now + takes, GATE, client)
        if goes_on:
            self.wait(client)

    def _drained(self, client: SimClient) -> None:
        self.end_work(client)
        self.end_turn(client)
        if client.doing == ON_GPU:
            client.appointments[WORK] = -1
            client.wanting_since = self.now
        if client.target is not None and client.target < client.resident:
            self.evict(client)
            client.agent.inputs.moving = not self.overlap

    def _evicted(self, client: SimClient) -> None:
        self.evicted(client)
        self.say_held(client)
        if client.phase == LEAVING:
            if client.target is not None and client.target < client.resident:
                self.evict(client)
            else:
                client.agent.inputs.moving = 0
                self.step(client)

    def _restored_ahead(self, client: SimClient) -> None:
        if (later := self.room_from(client)) > self.now:
            self.at(later, RESTORE, client)
            return
        self.restored(client)
        self.say_held(client)
