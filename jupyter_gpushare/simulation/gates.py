"""The edge: hands events to the scheduler and carries out its commands on simulated processes, as the coordinator's
daemon does on real ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop
from typing import Any

from ..core import Scheduler
from ..core import commands as cmd
from ..core import events as ev
from ..core.settings import Settings
from ..core.throttle.budget import Budget
from .agenda import (
    CLOSED,
    DRAINING,
    GATE,
    IDLE,
    LEAVING,
    ON_GPU,
    OPEN,
    OPENING,
    RESTORE,
    WORK,
    SimClient,
    SimDevice,
)
from .movement import Movement
from .workload import Costs

NEVER = float("inf")
_TIME_PASSED = ev.TimePassed()


class Gates(Movement):
    """`log` has every event with its time, if asked for; `turns` every stretch of a grant, as far as it is kept."""

    def __init__(self, settings: Settings, costs: Costs, *, overlap: bool = False, log: bool = False) -> None:
        super().__init__(costs)
        self.scheduler = Scheduler(settings)
        self.clients: dict[str, SimClient] = {}
        self.by_number: dict[int, SimClient] = {}
        self.log: list[tuple[float, ev.Event]] | None = [] if log else None
        self.decisions = 0
        self.switches = 0
        self.unfinished = 0
        self._due = NEVER
        self._numbers = 0
        self._events: deque[ev.Event] = deque()
        self._ahead: list[SimClient] = []
        self._feeding = False
        self.overlap = overlap
        self._handle = self.scheduler.handle
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
        events, carry_out, log = self._events, self._carry_out, self.log
        try:
            while events:
                event = events.popleft()
                commands = self._handle(event, self.now)
                self.decisions += 1
                if log is not None:
                    log.append((self.now, event))
                for command in commands:
                    if action := carry_out.get(type(command)):
                        action(command)
                while self._ahead:
                    self._begin_ahead(self._ahead.pop(0))
        finally:
            self._feeding = False
        due = self.scheduler.next_deadline()
        self._due = NEVER if due is None else due

    def begin_work(self, client: SimClient) -> None:
        """Its gate is open and it has GPU work."""
        raise NotImplementedError

    def end_work(self, client: SimClient) -> None:
        """It works no more, if it did."""
        raise NotImplementedError

    def end_turn(self, client: SimClient) -> None:
        """Its work has drained, or it is gone."""
        raise NotImplementedError

    def say_progress(self, client: SimClient) -> None:
        """What it has done so far, if anybody wants to know."""
        raise NotImplementedError

    def left(self, client: SimClient) -> float:
        """GPU seconds of its present phase."""
        raise NotImplementedError

    def limit_rate(self, client: SimClient, budget: Budget | None) -> None:
        raise NotImplementedError

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
        client.permit, client.contended = command, command.contended
        if not client.turn:
            self._try_to_enter(client)
        elif not command.may or command.turn != client.turn:
            self._close_gate(client)
        elif client.gate == DRAINING:  # the closing is taken back
            client.gate = OPEN
            client.appointments[GATE] = -1
            if client.wanted_said:
                client.wanted_said = False
                self.feed(ev.Unwanted(client.number))
            self._go_on(client)
        elif client.contended:
            self.watch_idleness(client)

    def _try_to_enter(self, client: SimClient) -> None:
        """Enter the permitted turn if the client waits and the locks of all its devices admit it."""
        permit = client.permit
        if permit is None or not permit.may or permit.epoch == client.used or not client.wanted_said:
            return
        if not client.number or any(device.turn not in (0, permit.turn) for device in client.devices):
            return
        client.turn = permit.turn
        for device in client.devices:
            device.turn = permit.turn
            device.inside[client.index] = client
            if device.last != client.index:
                device.last = client.index
                self.switches += 1
        client.turn_began = self.now
        self.stop_eviction(client)
        client.gate = OPENING
        client.close_asked = client.wanted_said = client.idle_said = False
        self.at(self.restore(client, self.now + self.costs.handover), GATE, client)
        self.feed(ev.Began(client.number, client.turn, self.now))

    def leave(self, client: SimClient) -> tuple[SimDevice, ...]:
        """Leave the turn, if the client is in one; returns the devices that are free now."""
        if not client.turn:
            return ()
        client.turn, client.used = 0, client.permit.epoch if client.permit else 0
        for device in client.devices:
            del device.inside[client.index]
            if not device.inside:
                device.turn = 0
        return tuple(device for device in client.devices if not device.turn)

    def let_in(self, freed: tuple[SimDevice, ...]) -> None:
        """Let a permitted client that waits enter."""
        for device in freed:
            for client in list(device.present.values()):
                if not client.turn:
                    self._try_to_enter(client)

    def _end(self, client: SimClient) -> None:
        turn, freed = client.turn, self.leave(client)
        client.gate = CLOSED
        self.feed(ev.Ended(client.number, turn))
        self.let_in(freed)

    def _close_gate(self, client: SimClient) -> None:
        if client.gate == OPENING:
            client.close_asked = True
        elif client.gate == OPEN:
            self._begin_drain(client, self.costs.drain)

    def _begin_drain(self, client: SimClient, submitted: float) -> None:
        """`submitted` seconds of work are let finish."""
        client.gate = DRAINING
        client.appointments[IDLE] = -1
        if client.worked_at < 0 or client.rate <= 0:
            self.at(self.now + self.costs.scan, GATE, client)
            if client.worked_at >= 0:
                self._say_wanted(client)
            return
        left = self.left(client) / client.rate
        takes = max(submitted, client.spec.launch)
        self.at(self.now + min(takes, left), GATE, client)
        if takes < left:
            self._say_wanted(client)

    def _say_wanted(self, client: SimClient) -> None:
        if not client.wanted_said:
            client.wanted_said = True
            self.feed(client.wanted)
            if not client.turn:
                self._try_to_enter(client)

    def _set_resident(self, command: cmd.SetResident) -> None:
        client = self.clients[command.client]
        client.target = command.bytes
        if client.gate == CLOSED and client.devices:
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
        elif client.gate == CLOSED and client.moving_in:
            self.stop_restore(client)
            self.say_held(client)

    def _begin_ahead(self, client: SimClient) -> None:
        """After all else that was decided: whoever is granted the device comes first."""
        if client.number:
            self.restore_ahead(client)

    def _set_budget(self, command: cmd.SetBudget) -> None:
        self.limit_rate(self.clients[command.client], command.budget)

    # --- what processes do by themselves

    def watch_idleness(self, client: SimClient) -> None:
        """The agent says "idle" once a turn, when there was no GPU work for the idle-release time and others wait."""
        if client.gate == OPEN and client.contended and client.doing != ON_GPU and not client.idle_said:
            self.at(max(self.now, client.idle_since + self.idle_release(client)), IDLE, client)

    def idle_release(self, client: SimClient) -> float:
        return self.scheduler.idle_release(self.scheduler.clients[client.id])

    def _idle(self, client: SimClient) -> None:
        if client.gate == OPEN and client.contended and client.doing != ON_GPU:
            client.idle_said = True
            self.feed(ev.WentIdle(client.number))

    def _gate(self, client: SimClient) -> None:
        """The gate of the client has opened, or its work has drained."""
        if client.gate == OPENING:
            self._opened(client)
        elif client.gate == DRAINING:
            self._drained(client)

    def _opened(self, client: SimClient) -> None:
        came = client.moving_in > 0
        if came and (later := self.room_from(client)) > self.now:
            self.at(later, GATE, client)
            return
        if came:
            self.restored(client)
        client.gate = OPEN
        self._go_on(client)
        if client.close_asked:  # while its memory came: the call that brought it back goes ahead
            self._begin_drain(client, client.spec.launch)
        if came:
            self.say_held(client)
            self.feed(ev.Restored(client.number))

    def _go_on(self, client: SimClient) -> None:
        if client.doing == ON_GPU:
            self.begin_work(client)
        else:
            client.idle_since = self.now
            self.watch_idleness(client)

    def _drained(self, client: SimClient) -> None:
        if client.doing == ON_GPU and not client.wanted_said:
            # All of its phase had been submitted, and somebody beside it has slowed it down since.
            self.at(self.now + self.left(client) / client.rate, GATE, client)
            return
        self.end_work(client)
        self.end_turn(client)
        if client.doing == ON_GPU:
            client.appointments[WORK] = -1
            client.wanting_since = self.now
            self._say_wanted(client)  # if it was thought that the phase would end in the drain
        leaves = client.target is not None and client.target < client.resident
        if leaves and not self.overlap:
            client.gate = LEAVING
            self.evict(client)
            self.feed(ev.Evicting(client.number))
            return
        client.gate = CLOSED
        if leaves:
            self.evict(client)
        self._end(client)

    def _evicted(self, client: SimClient) -> None:
        self.evicted(client)
        self.say_held(client)
        if client.gate == LEAVING:
            if client.target is not None and client.target < client.resident:
                self.evict(client)
            else:
                self._end(client)

    def _restored_ahead(self, client: SimClient) -> None:
        if (later := self.room_from(client)) > self.now:
            self.at(later, RESTORE, client)
            return
        self.restored(client)
        self.say_held(client)
