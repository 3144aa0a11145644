"""Edge of the simulation, in the place of the coordinator and the agents.

The edge sends events to the scheduler and executes the scheduler's commands on simulated processes.
The compiled agent rule decides how a process enters and leaves turns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop
from typing import Any

from ..agent import rule
from ..core import Scheduler
from ..core.interface import commands as cmd
from ..core.interface import events as ev
from ..core.interface.settings import Settings
from ..wire.page import CLOSING, CONTENDED, IN, LEAVING, MAY, OUT, RELIEVED
from .clairvoyant import Clairvoyant
from .entities import GATE, IDLE, NO_TIME_NS, ON_GPU, RESTORE, WORK, SimClient, SimDevice
from .execution import ExecutionModel
from .reports.report_data import TimelineData
from .workloads.workload import Workload

NEVER = float("inf")
_MIN_WORK_SECONDS = 1e-9  # of a phase that goes on: less is lost in the sum with the present time
_TIME_PASSED = ev.Tick()


class SimulatedAgent(ExecutionModel):
    """Scheduler with processes that follow its permits by the agent rule."""

    def __init__(
        self, workload: Workload, settings: Settings, *, details: TimelineData | None, is_clairvoyant: bool
    ) -> None:
        super().__init__(workload.costs, settings, details)
        self.scheduler = Scheduler(settings)
        self.clients: dict[str, SimClient] = {}
        self.devices: dict[str, SimDevice] = {}
        if is_clairvoyant:
            self.scheduler.turns.table.policies.set_host_policy(
                lambda settings: Clairvoyant(settings, lambda name: self.remaining_of_cell(self.clients[name]))
            )
        self.gpu_users: dict[int, SimClient] = {}  # clients whose programs work on the GPU or wait for it, by index
        self.decisions = 0
        self.switches = 0
        self.free_devices: set[SimDevice] = set()  # devices that work and have no turn
        self._next_deadline = NEVER
        self._last_process_number = 0
        self._events: deque[ev.Event] = deque()
        self._pending_prefetches: list[SimClient] = []
        self._is_handling = False
        self.overlap = workload.overlap
        self._handle = self.scheduler.handle
        self._agent_step = rule.native().agent_step
        self._outputs = rule.ffi.new("struct agent_outputs *")
        self._command_handlers: dict[type, Callable[[Any], None]] = {
            cmd.Permit: self._on_permit,
            cmd.SetResident: self._on_set_resident,
            cmd.SetTurnLimit: self._on_set_turn_limit,
            cmd.Prefetch: self._on_prefetch,
            cmd.SetBudget: self._on_set_budget,
        }

    # --- events

    def handle_event(self, event: ev.Event) -> None:
        """Send an event to the scheduler and execute its commands, with all events that follow from them.

        Raises Refused for a client that the scheduler does not admit.
        """
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        events, carry_out = self._events, self._command_handlers
        try:
            while events:
                event = events.popleft()
                commands = self._handle(event, self.now)
                self.decisions += 1
                for command in commands:
                    if action := carry_out.get(type(command)):
                        action(command)
                while self._pending_prefetches:
                    self._prefetch_if_running(self._pending_prefetches.pop(0))
        finally:
            self._is_handling = False
        due = self.scheduler.next_deadline()
        self._next_deadline = NEVER if due is None else due

    def run_until(self, end: float, on_progress: Callable[[float], None] | None = None) -> None:
        """Run all timers and deadlines up to `end`, and call `on_progress` periodically with the time."""
        heap, actions = self._heap, self._actions
        count = 0
        while True:
            planned = heap[0][0] if heap else NEVER
            if self._next_deadline < planned:
                if self._next_deadline > end:
                    break
                self._advance(max(self.now, self._next_deadline))
                self.handle_event(_TIME_PASSED)
            else:
                if planned > end:
                    break
                _, sequence, kind, client = heappop(heap)
                if client.timers[kind] != sequence:
                    continue
                client.timers[kind] = -1
                self._advance(planned)
                actions[kind](client)
            count += 1
            if on_progress is not None and not count & 0xFFF:
                on_progress(self.now)
        self.handled_events += count
        self._advance(end)

    def _advance(self, time: float) -> None:
        table = self.scheduler.turns.table
        if self.free_devices and table.waiting:
            is_awaited = [bool(table.devices[device.uuid].queue) for device in self.free_devices]
            self.results.record_free_devices(is_awaited, time - self.now)
        if time > self.now:
            self.record_limits(time)
        self.now = time

    def record_limits(self, until: float) -> None:
        """Record the limits of all clients that work or wait, which are the present ones until then."""
        self.results.limited.add(self.scheduler, self.gpu_users.values(), self.now, until, self.costs.drain)

    # --- commands

    def _on_permit(self, command: cmd.Permit) -> None:
        client = self.clients[command.client]
        if not client.process_number:
            return
        client.permit, permit = command, client.agent.permit
        permit.turn, permit.epoch = command.turn, command.epoch
        permit.devices = (1 << len(command.devices)) - 1
        permit.deadline_ns = round(1e9 * (command.deadline or 0.0))
        permit.flags = MAY * command.may | RELIEVED * command.relieved | CONTENDED * command.contended
        if client.phase == OUT:
            self.try_to_enter(client)
        else:
            self.step(client)

    def _on_set_resident(self, command: cmd.SetResident) -> None:
        client, device = self.clients[command.client], self.devices[command.device]
        if command.bytes is None:
            client.resident_targets.pop(device, None)
        else:
            client.resident_targets[device] = command.bytes
        if client.phase == OUT and client.devices:
            before = client.resident
            self.stop_eviction(client)
            if client.resident_targets:
                self.stop_restore(client)
            self.evict_when_out(client)
            if client.prefetch_devices:
                self._pending_prefetches.append(client)
            if client.resident != before:
                self.report_memory(client)

    def _on_set_turn_limit(self, command: cmd.SetTurnLimit) -> None:
        client = self.clients.get(command.client)
        if client is None:
            return
        client.turn_limit = command.bytes
        if client.is_gate_open:
            self.adjust_to_limit(client)
            self.update_speed(client)

    def _on_prefetch(self, command: cmd.Prefetch) -> None:
        client = self.clients[command.client]
        device = client.device(command.device)
        if device is None:
            return
        if command.enabled:
            client.prefetch_devices[device] = None
            self._pending_prefetches.append(client)
            return
        client.prefetch_devices.pop(device, None)
        if client.phase == OUT and client.restoring:
            self.stop_restore(client)
            self.report_memory(client)
            self._pending_prefetches.append(client)  # to the other devices it goes on

    def _prefetch_if_running(self, client: SimClient) -> None:
        """Begin a prefetch, which follows all other commands, because the client that gets the device has priority."""
        if client.process_number:
            self.start_prefetch(client)

    def _on_set_budget(self, command: cmd.SetBudget) -> None:
        self.limit_rate(self.clients[command.client], command.budget)

    # --- processes

    def step(self, client: SimClient, drained: bool = False) -> None:
        """Step the rule and act on its outputs. `drained` is true if the submitted work has finished."""
        state, inputs, out = client.agent.state, client.agent.inputs, self._outputs
        before, turn = client.phase, client.turn_number
        freed: tuple[SimDevice, ...] = ()
        inputs.now = now = round(1e9 * self.now)
        inputs.waiting = before == OUT  # a drain never waits for a thread at the gate, so no step may open the gate
        inputs.tried = rule.NOT_TRIED
        if before == IN and client.permit and client.permit.contended:
            inputs.idle_release_ns = round(1e9 * self.idle_release(client))
        while True:
            quiet = drained if client.phase == CLOSING else client.activity != ON_GPU
            inputs.polled = rule.QUIET if quiet else rule.BUSY
            self._agent_step(state, inputs, out)
            acts, client.phase = out.acts, state.report.phase
            if acts & rule.DRAINED:
                self._on_drained(client)
            if acts & rule.LEAVE:
                freed = self.leave_turn(client)
                break
            inputs.tried = self._enter(client, out.turn) if acts & rule.ENTER else rule.NOT_TRIED
            if not acts & rule.ENTER and out.wake_at > now:
                break
        client.boundary_from_ns = out.boundary_from
        if client.phase == LEAVING and out.wake_at != NO_TIME_NS:
            self.schedule(out.wake_at / 1e9, GATE, client)
        self._report_step(client, before, turn, bool(acts & rule.CHANGED))
        self.admit_waiting(freed)

    def _report_step(self, client: SimClient, before: int, turn: int, changed: bool) -> None:
        """Send the events of a step, and begin or end what the step asks for."""
        after = client.phase
        if before == after == IN:
            self._report_idleness(client)
        elif before == after == LEAVING and changed:
            self.handle_event(ev.EvictionStarted(client.process_number))
        elif before == OUT and after == IN:
            client.turn_entered_at, client.is_restoring = self.now, True
            client.is_waiting_at_gate = client.is_idle = client.is_quiet = False
            self.stop_eviction(client)
            self.schedule(self.start_restore(client, self.now + self.costs.handoff), GATE, client)
            self.handle_event(ev.TurnEntered(client.process_number, client.turn_number, self.now))
        elif before == IN and after == CLOSING:
            client.timers[IDLE] = -1
            if not client.is_restoring:
                self._begin_drain(client, self.costs.drain)
        elif before == CLOSING and after == IN:
            client.is_quiet = False
            if not client.is_restoring:
                self._on_reopened(client)
        elif before != OUT and after == OUT:
            self.handle_event(ev.TurnLeft(client.process_number, turn))

    def _locks_admit(self, client: SimClient) -> bool:
        """Return whether the locks of the client's devices admit the turn of its permit."""
        permit = client.permit
        return permit is not None and permit.may and all(one.turn_number in (0, permit.turn) for one in client.devices)

    def try_to_enter(self, client: SimClient) -> None:
        """Step, unless the locks would refuse the attempt to enter."""
        if client.phase == OUT and client.is_waiting_at_gate and self._locks_admit(client):
            self.step(client)

    def _enter(self, client: SimClient, turn: int) -> int:
        """Enter a turn if the locks admit it, and return the rule's input about the attempt."""
        if not self._locks_admit(client):
            return rule.REFUSED
        client.turn_number = turn
        for device in client.devices:
            device.turn_number = turn
            self.free_devices.discard(device)
            device.clients_in_turn[client.index] = client
            if device.last_client_index != client.index:
                device.last_client_index = client.index
                self.switches += 1
        return rule.ENTERED

    def leave_turn(self, client: SimClient) -> tuple[SimDevice, ...]:
        """Leave the turn, if the client is in one, and return the devices that have become free."""
        if not client.turn_number:
            return ()
        client.turn_number, client.phase, client.is_restoring = 0, OUT, False
        client.timers[GATE] = -1
        for device in client.devices:
            device.clients_in_turn.pop(client.index, None)  # the turn of a move may be on its new device only
            if not device.clients_in_turn:
                device.turn_number = 0
                if not device.has_failed:
                    self.free_devices.add(device)
        return tuple(device for device in client.devices if not device.turn_number)

    def admit_waiting(self, freed: tuple[SimDevice, ...]) -> None:
        """Let waiting clients with a permit enter on devices that have become free."""
        for device in freed:
            for client in list(device.clients.values()):
                self.try_to_enter(client)

    def wait_at_gate(self, client: SimClient) -> None:
        """Begin to wait at the gate, and enter if the permit and the locks allow it."""
        if not client.is_waiting_at_gate:
            client.is_waiting_at_gate = True
            self.handle_event(client.gate_wait_started)
            self.try_to_enter(client)

    def update_idleness(self, client: SimClient) -> None:
        """Step if the work has begun or ended and the rule must be informed."""
        contended = client.permit is not None and client.permit.contended
        if client.is_gate_open and contended and client.is_quiet != (client.activity != ON_GPU):
            self.step(client)

    def _report_idleness(self, client: SimClient) -> None:
        state, inputs = client.agent.state, client.agent.inputs
        since, idle, was_idle = state.idle_since, bool(state.idle), client.is_idle
        client.is_quiet, client.is_idle = since > 0, idle
        if since and not idle:
            self.schedule((since + inputs.idle_release_ns + 1) / 1e9, IDLE, client)
        else:
            client.timers[IDLE] = -1
        if idle != was_idle:
            self.handle_event(ev.ProcessIdle(client.process_number) if idle else ev.ProcessBusy(client.process_number))

    def idle_release(self, client: SimClient) -> float:
        return self.scheduler.idle_release(self.scheduler.clients[client.id])

    def _on_gate_timer(self, client: SimClient) -> None:
        """Handle the timer GATE: the end of a restore or a drain, or the next step of a process that leaves."""
        if client.is_restoring:
            self._on_opened(client)
        elif client.phase == LEAVING:
            self.step(client)
        elif client.activity == ON_GPU and not client.is_waiting_at_gate:
            # The whole phase had been submitted, and a colocated client has slowed it down since.
            remaining = max(self.remaining_work(client), _MIN_WORK_SECONDS)
            self.schedule(self.now + remaining / client.rate, GATE, client)
        else:
            self.step(client, drained=True)

    def _on_opened(self, client: SimClient) -> None:
        was_restored = bool(client.restoring)
        if was_restored and (later := self.room_available_at(client)) > self.now:
            self.schedule(later, GATE, client)
            return
        if was_restored:
            self.finish_restore(client)
        client.is_restoring = False
        if client.turn_limit is not None:
            self.adjust_to_limit(client)
        self.continue_work(client)
        if client.phase == CLOSING:  # during the restore: the call that caused the restore is still submitted
            self._begin_drain(client, client.spec.launch)
        if was_restored:
            self.report_memory(client)
            self.handle_event(ev.RestoreFinished(client.process_number))

    def _on_reopened(self, client: SimClient) -> None:
        client.timers[GATE] = -1
        if client.is_idle:
            client.is_idle = False
            self.handle_event(ev.ProcessBusy(client.process_number))
        if client.is_waiting_at_gate:
            client.is_waiting_at_gate = False
            self.handle_event(ev.GateWaitEnded(client.process_number))
        self.continue_work(client)

    def continue_work(self, client: SimClient) -> None:
        """Continue the client's work after its gate has opened."""
        if client.activity == ON_GPU:
            self.begin_work(client)
        self.update_idleness(client)

    def _begin_drain(self, client: SimClient, submitted: float) -> None:
        """Begin to drain, with `submitted` seconds of work."""
        if client.accounted_until < 0 or client.rate <= 0 or client.agent.state.at_boundary:
            takes, goes_on = self.costs.empty_drain, client.accounted_until >= 0
        else:
            left = self.remaining_work(client) / client.rate
            takes = max(submitted, client.spec.launch)
            takes, goes_on = min(takes, left), takes < left
        self.schedule(self.now + takes, GATE, client)
        if goes_on:
            self.wait_at_gate(client)

    def _on_drained(self, client: SimClient) -> None:
        self.end_work(client)
        self.end_turn(client)
        if client.restoring or client.evicting:  # for a turn limit
            self.stop_restore(client)
            self.stop_eviction(client)
            self.report_memory(client)
        if client.activity == ON_GPU:
            client.timers[WORK] = -1
            client.waiting_since = self.now
        if client.has_surplus:
            self.start_eviction(client)
            client.agent.inputs.moving = not self.overlap

    def on_evicted(self, client: SimClient) -> None:
        """Go on after the end of an eviction."""
        self.finish_eviction(client)
        self.update_speed(client)
        self.report_memory(client)
        for other in [one for device in client.devices for one in device.clients.values() if one.prefetch_devices]:
            self.start_prefetch(other)
        if client.phase == LEAVING:
            if client.has_surplus:
                self.start_eviction(client)
            else:
                client.agent.inputs.moving = 0
                self.step(client)

    def _on_prefetched(self, client: SimClient) -> None:
        if (later := self.room_available_at(client)) > self.now:
            self.schedule(later, RESTORE, client)
            return
        self.finish_restore(client)
        self.update_speed(client)
        self.report_memory(client)
