"""Moves and hibernation of simulated processes, in the place of the shim and the driver.

Only a process outside of turns moves, because the scheduler moves idle and waiting clients only. The process enters the
turn of the move, evicts its memory, and is a new process on the new device some time later. A hibernation is the first
half of a move, and a return the second half, each in a turn on the process's own device.
"""

from __future__ import annotations

from ..core.interface import commands as cmd
from ..core.interface import events as ev
from ..core.interface.settings import Settings
from ..wire.page import LEAVING, OUT
from .entities import MOVE, AgentRuleState, SimClient, SimDevice
from .reports.report_data import TimelineData
from .training_agent import TrainingAgent
from .workloads.workload import Workload

_CONTEXT_BYTES = 500 << 20  # that the driver copies twice, of contexts and modules
_DRIVER_SECONDS = 1.0  # for checkpoint and restore besides, half of it for each


class MovingAgent(TrainingAgent):
    """Scheduler with processes that also move. Processes with unified memory refuse to move, as in the shim."""

    def __init__(
        self, workload: Workload, settings: Settings, *, details: TimelineData | None, is_clairvoyant: bool
    ) -> None:
        super().__init__(workload, settings, details=details, is_clairvoyant=is_clairvoyant)
        self.moves = 0
        self._movers: dict[int, SimClient] = {}  # at least all clients with a move, by their indexes
        self._command_handlers |= {
            cmd.PrepareMove: self._on_prepare_move,
            cmd.StartMove: self._on_start_move,
            cmd.FinishMove: self._on_finish_move,
        }

    def join(self, client: SimClient, devices: tuple[SimDevice, ...]) -> None:
        """Begin a process of the client on the devices."""
        self.handle_event(self._begin_process(client, devices))

    def _begin_process(self, client: SimClient, devices: tuple[SimDevice, ...]) -> ev.ProcessJoined:
        client.devices = devices
        self._last_process_number += 1
        client.process_number = self._last_process_number
        client.gate_wait_started = ev.GateWaitStarted(client.process_number)
        client.agent, client.permit, client.max_rate = AgentRuleState(len(devices)), None, 1.0
        client.is_idle = client.is_quiet = False
        for device in devices:
            device.clients[client.index] = client
        return ev.ProcessJoined(client.id, client.process_number, tuple(one.uuid for one in devices))

    # --- commands

    def _on_prepare_move(self, command: cmd.PrepareMove) -> None:
        client = self.clients[command.client]
        error = ""
        if command.hibernates and client.spec.kind != "notebook":
            error = "the client is no notebook, whose next cell would be known"
        elif not self.overlap and not client.spec.plain:
            error = "its memory is unified"
        if error:
            self.handle_event(ev.MoveEnded(client.process_number, command.device, error))
            return
        client.moving_to = self.devices[command.device]
        self._movers[client.index] = client
        if client.phase == OUT:
            self._wait_for_move(client)

    def _on_start_move(self, command: cmd.StartMove) -> None:
        client = self.clients[command.client]
        if client.moving_to:
            link = min(client.moving_to.link, client.devices[0].link)
            halves = 1 if command.hibernates or command.returns else 2
            self.schedule(self.now + halves * (_DRIVER_SECONDS / 2 + _CONTEXT_BYTES / link), MOVE, client)

    def _on_finish_move(self, command: cmd.FinishMove) -> None:
        client = self.clients[command.client]
        if not command.error or not client.moving_to:
            return
        was_in_turn, client.moving_to = client.is_in_turn_of_move, None
        if was_in_turn:
            self._leave_move(client)
        elif client.process_number and client.phase == OUT and not client.is_waiting_at_gate:
            self.handle_event(ev.GateWaitEnded(client.process_number))

    # --- the process

    def try_to_enter(self, client: SimClient) -> None:
        """Enter the turn of a move, or the client's next turn, if the permit and the locks allow it."""
        there = client.moving_to
        if there is None:
            if not client.hibernated:
                super().try_to_enter(client)
        elif client.phase == OUT and self._admits_move(client, there):
            self._enter_move(client)

    def admit_waiting(self, freed: tuple[SimDevice, ...]) -> None:
        """Let waiting clients enter on devices that have become free, also those that move to one of them."""
        super().admit_waiting(freed)
        for index, client in list(self._movers.items()):
            if client.moving_to is None:
                del self._movers[index]
            elif client.moving_to in freed:
                self.try_to_enter(client)

    def leave_turn(self, client: SimClient) -> tuple[SimDevice, ...]:
        """Leave the turn, also that of a move, and return the devices that have become free."""
        freed = super().leave_turn(client)
        others = tuple(device for device in self.devices.values() if client.index in device.clients_in_turn)
        return (*freed, *self._leave_devices(client, others))

    def step(self, client: SimClient, drained: bool = False) -> None:
        """Step the rule, but not for a client in the turn of its move, which ends by itself."""
        if client.is_in_turn_of_move:
            return
        had_turn = client.phase != OUT
        super().step(client, drained)
        if client.moving_to and had_turn and client.phase == OUT:
            self._wait_for_move(client)

    def _wait_for_move(self, client: SimClient) -> None:
        self.handle_event(client.gate_wait_started)
        self.try_to_enter(client)

    def on_evicted(self, client: SimClient) -> None:
        """Go on after the end of an eviction; a client that moves stays in its turn."""
        if client.is_in_turn_of_move:
            self.finish_eviction(client)
            if client.has_surplus:
                self.start_eviction(client)
            self.report_memory(client)
        else:
            super().on_evicted(client)

    def on_moved(self, client: SimClient) -> None:
        """Begin the process on its new device, after the driver's part of the move."""
        there = client.moving_to
        if there in client.devices:
            self._on_hibernated_or_returned(client, there)
            return
        client.moving_to = None
        if there is None or not client.process_number:
            return
        self.moves += 1
        number = client.process_number
        self.stop_eviction(client)
        self._drop_memory(client)
        freed = self.leave_turn(client)
        for device in client.devices:
            del device.clients[client.index]
        joined = self._begin_process(client, (there,))
        self._events.extend((ev.MoveEnded(number, there.uuid), ev.ProcessGone(number), joined))
        if client.is_waiting_at_gate:
            self._events.append(client.gate_wait_started)
        self.report_memory(client)
        self.admit_waiting(freed)

    def _on_hibernated_or_returned(self, client: SimClient, device: SimDevice) -> None:
        """End the turn of a hibernation or a return after the driver's part of it."""
        client.moving_to = None
        self.stop_eviction(client)
        client.hibernated = 0 if client.hibernated else _CONTEXT_BYTES + client.resident
        self._drop_memory(client)
        self._events.append(ev.MoveEnded(client.process_number, device.uuid, hibernated=client.hibernated))
        self.report_memory(client)
        self._leave_move(client)

    def _admits_move(self, client: SimClient, there: SimDevice) -> bool:
        permit = client.permit
        if permit is None or not permit.may or there.uuid not in permit.devices:
            return False
        return all(self.devices[uuid].turn_number in (0, permit.turn) for uuid in permit.devices)

    def _enter_move(self, client: SimClient) -> None:
        turn, devices = (client.permit.turn, client.permit.devices) if client.permit else (0, ())
        client.turn_number, client.phase = turn, LEAVING
        for device in (self.devices[uuid] for uuid in devices):
            device.turn_number = turn
            device.clients_in_turn[client.index] = client
            self.free_devices.discard(device)
        self.stop_restore(client)
        self.handle_event(ev.TurnEntered(client.process_number, turn, self.now))
        if client.has_surplus and not client.evicting:
            self.start_eviction(client)
        self.handle_event(ev.EvictionStarted(client.process_number))

    def _leave_move(self, client: SimClient) -> None:
        """End the turn of a move without effect."""
        turn = client.turn_number
        freed = self.leave_turn(client)
        client.timers[MOVE] = -1
        left = ev.TurnLeft(client.process_number, turn)
        if client.is_waiting_at_gate:
            self._events.append(left)
            self.handle_event(client.gate_wait_started)
        else:
            self.handle_event(left)
        self.admit_waiting(freed)

    def _leave_devices(self, client: SimClient, devices: tuple[SimDevice, ...]) -> tuple[SimDevice, ...]:
        client.turn_number, client.phase = 0, OUT
        for device in devices:
            device.clients_in_turn.pop(client.index, None)
            if not device.clients_in_turn:
                device.turn_number = 0
                if not device.has_failed:
                    self.free_devices.add(device)
        return tuple(device for device in devices if not device.turn_number)

    def _drop_memory(self, client: SimClient) -> None:
        """Count what is still on the former device as moved by the driver."""
        for device, size in client.resident_on.items():
            self.remove_all(client, device, size)
            self.bytes_out += size
        client.resident_on, client.prefetch_devices = {}, {}
