"""Handlers of the events that processes and kernels report: waits, turns, drains, memory, cells and progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..colocation.colocation_control import ColocationController
from ..interface import events as ev
from ..measure.cell_runs import CellRun
from ..state.model import EntityRegistry
from ..turns.grant_table import GrantTable
from ..turns.turn_close import TurnCloser
from ..turns.turn_start import TurnStarter


class ProcessEventHandlers:
    """Handlers of events of processes; `handlers` has the handler of each event."""

    def __init__(
        self,
        registry: EntityRegistry,
        table: GrantTable,
        closer: TurnCloser,
        starter: TurnStarter,
        colocation: ColocationController,
    ) -> None:
        self._registry = registry
        self._table = table
        self._closer = closer
        self._starter = starter
        self._colocation = colocation
        self.handlers: dict[type, Callable[[Any, float], None]] = {
            ev.GateWaitStarted: self._on_gate_wait_started,
            ev.GateWaitEnded: self._on_gate_wait_ended,
            ev.TurnEntered: self._on_turn_entered,
            ev.GateClosed: self._on_gate_closed,
            ev.TurnLeft: self._on_turn_left,
            ev.PermitUnused: self._on_permit_unused,
            ev.EvictionStarted: self._on_eviction_started,
            ev.RestoreFinished: self._on_restore_finished,
            ev.MemoryReported: self._on_memory_reported,
            ev.ProcessIdle: self._on_process_idle,
            ev.ProcessBusy: self._on_process_busy,
            ev.CellStarted: self._on_cell_started,
            ev.CellEnded: self._on_cell_ended,
            ev.Progress: self._on_progress,
        }

    def _on_gate_wait_started(self, event: ev.GateWaitStarted, now: float) -> None:
        process = self._registry.process(event.process)
        client = process.client
        if not process.is_waiting_at_gate:
            process.waiting_at_gate_since = now
        process.is_waiting_at_gate = True
        self._table.mark_dirty(client)
        grant = client.grant
        if grant is None or client.needs_more_devices:
            self._table.enter_queue(client, now)
        elif client.permit and process.turn == 0 and process.left_epoch == client.permit.epoch:
            self._table.permits.require_new_epoch(client)  # the turn goes on, and this process may enter it again

    def _on_gate_wait_ended(self, event: ev.GateWaitEnded, now: float) -> None:
        process = self._registry.process(event.process)
        process.is_waiting_at_gate = False
        self._table.mark_dirty(process.client)
        self._table.leave_queue_if_satisfied(process.client, now)

    def _on_turn_entered(self, event: ev.TurnEntered, now: float) -> None:
        self._starter.on_turn_entered(self._registry.process(event.process), event.turn, event.at, now)

    def _on_gate_closed(self, event: ev.GateClosed, now: float) -> None:
        process = self._registry.process(event.process)
        grant = process.client.grant
        if grant and grant.turn == event.turn == process.turn:
            self._closer.start_closing(grant, now, event.at)

    def _on_turn_left(self, event: ev.TurnLeft, now: float) -> None:
        process = self._registry.process(event.process)
        if process.turn == event.turn:
            self._starter.on_turn_left(process, event.turn, event.closed_at, now)

    def _on_permit_unused(self, event: ev.PermitUnused, now: float) -> None:
        self._starter.on_permit_unused(self._registry.client(event.client), event.stopped, now)

    def _on_eviction_started(self, event: ev.EvictionStarted, now: float) -> None:
        process = self._registry.process(event.process)
        grant = process.client.grant
        if grant and grant.is_draining and process.turn == grant.turn:
            process.is_evicting = True
            self._closer.update_eviction_phase(grant, now)
            self._table.mark_dirty(process.client)

    def _on_restore_finished(self, event: ev.RestoreFinished, now: float) -> None:
        process = self._registry.process(event.process)
        grant = process.client.grant
        if not grant or process.turn != grant.turn:
            return
        # A process may report at any time, so the largest of quantum, switch cost and allowance is the bound.
        quantum = self._table.policies.policy_of(process.client).quantum(process.client)
        max_seconds = max(quantum, process.client.switch_cost.total, grant.max_restore_seconds)
        restore_seconds = min(now - grant.granted_at, max_seconds)
        grant.restore_seconds = max(grant.restore_seconds, restore_seconds) if grant.has_restored else restore_seconds
        grant.has_restored = True
        self._closer.charge_return(grant, grant.restore_seconds, now)
        self._table.mark_dirty(process.client)

    def _on_memory_reported(self, event: ev.MemoryReported, now: float) -> None:
        client = self._registry.client(event.client)
        client.can_spill = event.can_spill
        before = client.memory_use
        # Evicted memory that the program frees has not come back, and unmade memory has never left.
        evicted_bytes = event.allocated - event.resident - event.unmade
        has_restored = event.resident > before.resident and evicted_bytes < before.evicted_bytes
        grant = client.grant
        if grant and has_restored:
            grant.is_restoring = True
        if grant and grant.max_restore_seconds and not (evicted_bytes or grant.has_restored):
            # The program has freed the memory, or a prefetch has restored it, so no process may report the end.
            grant.restore_seconds = min(grant.restore_seconds, now - grant.granted_at)
            if not grant.is_restoring:
                grant.max_restore_seconds = 0.0
        self._table.set_memory_use(client, event.memory_use, event.by_device)
        for device in client.device_bindings:
            if device.has_memory_shortage:
                device.memory_short_at = now
        self._table.mark_dirty(client)

    def _on_process_idle(self, event: ev.ProcessIdle, now: float) -> None:
        process = self._registry.process(event.process)
        grant = process.client.grant
        if not grant or grant.is_draining or process.turn != grant.turn or not self._table.ends_when_idle(grant):
            return
        process.is_idle = True
        hold_until = process.client.hold_until
        if grant.is_idle and (hold_until is None or hold_until <= now):
            if self._table.has_contenders(grant):
                self._closer.start_closing(grant, now)
            else:
                grant.paused_at = now
        self._table.mark_dirty(process.client)

    def _on_process_busy(self, event: ev.ProcessBusy, now: float) -> None:
        process = self._registry.process(event.process)
        process.is_idle = False
        if process.client.grant:
            process.client.grant.paused_at = None
        self._table.mark_dirty(process.client)

    def _on_cell_started(self, event: ev.CellStarted, now: float) -> None:
        client = self._registry.client(event.client)
        if client.cells:
            client.cell_run = None  # the times of cells at once cannot be separated
        else:
            client.cells_since = now
            expected = client.cell_runs.expected(event.names)
            allocations = client.memory_use.allocated - client.memory_use.context
            client.cell_run = CellRun(
                event.names, client.gpu_seconds_at(now), event.busy_seconds, expected, allocations
            )
            self._table.start_work(client, now)
        client.cells.add(event.request)
        if client.grant:
            client.grant.cells_ended_at = None
        self._table.mark_dirty(client)

    def _on_cell_ended(self, event: ev.CellEnded, now: float) -> None:
        client = self._registry.client(event.client)
        # An unknown cell began under an earlier coordinator, and ended before its kernel was connected again.
        client.cells.discard(event.request)
        client.ended_run = None
        if not client.cells and client.cell_run:
            run, client.cell_run = client.cell_run, None
            client.ended_run = run.end(client.gpu_seconds_at(now), event.busy_seconds)
            client.cell_runs.add(run.names, client.ended_run.needed)
        if client.grant and not client.cells:
            client.grant.cells_ended_at = now
        self._table.mark_dirty(client)

    def _on_progress(self, event: ev.Progress, now: float) -> None:
        client = self._registry.client(event.client)
        exclusive = all(len(device.grants) < 2 for device in client.device_bindings)
        client.demand.add_sample(event.gpu_seconds, client.gpu_seconds_at(now), exclusive)
        self._colocation.on_progress(client, event, now)
        if any(len(device.grants) > 1 or device.queue for device in client.device_bindings):
            self._table.mark_dirty(client)
