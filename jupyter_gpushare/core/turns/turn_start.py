"""Start of turns: permits for next clients, turns that processes report, and turns that processes bring along."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ..base.device_info import ReportedTurn
from ..colocation.colocation_rules import admits_others
from ..interface.commands import CheckUnusedPermit
from ..interface.settings import MAX_QUANTUM_SECONDS
from ..measure.estimates import MIN_RESTORE_BYTES_PER_SECOND
from ..state.model import Client, Device, Grant, PendingPermit, Process
from .grant_table import PERMIT_CHECK, GrantTable
from .turn_close import TurnCloser

_PERMIT_CHECK_DELAY_SECONDS = 0.05  # until the edge checks an unused permit; doubled after each check
_MAX_PERMIT_CHECK_DELAY_SECONDS = 1.0


class TurnStarter:
    """Start of grants in the table, and of the permits before it."""

    def __init__(self, table: GrantTable, closer: TurnCloser) -> None:
        self._table = table
        self._closer = closer

    def issue_permit(self, client: Client, turn: int, now: float, joins_turn: bool = False) -> None:
        """Let the client enter the turn `turn` on its devices as soon as their locks admit it.

        `joins_turn`: other clients are in the turn, and the client is to be colocated with them.
        """
        if client.pending_permit and (client.pending_permit.turn, client.pending_permit.devices) == (
            turn,
            client.turn_devices,
        ):
            return
        self._table.withdraw_permit(client)
        client.pending_permit = PendingPermit(turn, client.turn_devices, now, joins_turn)
        for device in self._devices_to_enter(client):
            if device.next_client:
                self._table.withdraw_permit(device.next_client)
            device.next_client = client
            if device.queue.head(now) is client:  # a backfill does not show that no other client has the device
                device.taken_by_other_since = None
            self._table.mark_device_dirty(device)
        if client.grant:  # its closing may wait for a thread that needs these devices
            client.grant.reset_closing()
        self._table.mark_dirty(client)

    def _devices_to_enter(self, client: Client) -> list[Device]:
        """Return the devices that its permit covers, and its turn does not."""
        covered = client.grant.devices if client.grant else ()
        return [device for device in client.turn_bindings if device.info.uuid not in covered]

    def check_permit(self, client: Client) -> None:
        """Ask the edge why the client's permit has not been used for a while."""
        if client.pending_permit:
            client.pending_permit.checks += 1
            self._table.commands.append(CheckUnusedPermit(client.id))
            self.schedule_permit_check(client)

    def schedule_permit_check(self, client: Client) -> None:
        """Set when to check the client's unused permit: after all its devices have been free for some time."""
        due = None
        if client.pending_permit:
            devices = [self._table.devices[uuid] for uuid in client.pending_permit.devices]
            if all(grant.turn == client.pending_permit.turn for device in devices for grant in device.grants):
                since = max([client.pending_permit.since, *(device.free_since for device in devices)])
                delay = min(
                    _PERMIT_CHECK_DELAY_SECONDS * 2**client.pending_permit.checks, _MAX_PERMIT_CHECK_DELAY_SECONDS
                )
                due = max(since, self._table.now if client.pending_permit.checks else since) + delay
        self._table.deadlines.set((PERMIT_CHECK, client.id), due)

    def on_permit_unused(self, client: Client, stopped: bool, now: float) -> None:
        """Act on the reason that the edge has found for an unused permit."""
        if client.pending_permit is None:
            return
        if stopped:  # a stopped process does not count as waiting until it goes on
            for process in client.processes.values():
                process.is_waiting_at_gate = False
            self._table.leave_queue_if_satisfied(client, now)
            self._table.withdraw_permit(client)
            return
        for uuid in client.pending_permit.devices:
            device = self._table.devices[uuid]
            if not device.grants and device.taken_by_other_since is None:
                device.taken_by_other_since = now
                self._table.mark_device_dirty(device)

    # --- reports

    def on_turn_entered(self, process: Process, turn: int, at: float, now: float) -> None:
        """Record that the process has entered the turn, which outdates all earlier turns on the turn's devices."""
        client = process.client
        process.turn, process.is_waiting_at_gate, process.is_evicting, process.is_idle = turn, False, False, False
        self._table.mark_dirty(client)
        if client.grant:
            devices = (*process.devices, *(client.pending_permit.devices if client.pending_permit else ()))
            if client.grant.turn == turn and not set(devices) <= set(client.grant.devices):
                self._table.leave_queue(client, now)
                self._extend_turn(client.grant, devices, now)
            self._table.leave_queue_if_satisfied(client, now)
            return
        permitted = client.pending_permit is not None and client.pending_permit.turn == turn
        devices = _entered_devices(process)
        others = self._grants_of_other_turns(devices, turn)
        if others and not permitted:
            self._table.leave_queue_if_satisfied(client, now)
            return  # its permit ends the turn; else `adopt_unpermitted_turn` adds a grant for it
        for grant in others:
            self._end_replaced_turn(grant, now)
        self._start_turn(client, turn, devices, max(min(at, now), self._free_since(devices)))

    def on_turn_left(self, process: Process, turn: int, closed_at: float | None, now: float) -> None:
        """Record that the process has left the turn."""
        client = process.client
        process.turn, process.is_evicting, process.is_idle = 0, False, False
        process.left_epoch = client.permit.epoch if client.permit else 0
        self._table.mark_dirty(client)
        grant = client.grant
        if grant and grant.turn == turn and not grant.processes:
            if closed_at is not None:
                self._closer.start_closing(grant, now, closed_at)
            self._closer.finish_turn(grant, now)

    def adopt_turn(self, process: Process, turn: ReportedTurn, now: float) -> None:
        """Add a grant for a turn that a process brings along, if no other turn is on its devices."""
        client = process.client
        process.turn = turn.number
        self._table.mark_dirty(client)
        grant = client.grant
        if grant is None and not self._grants_of_other_turns(process.devices, turn.number):
            grant = self._start_turn(client, turn.number, process.devices, now)
        if grant and grant.turn == turn.number:
            self._table.add_devices(grant, process.devices, now)
            self._table.leave_queue_if_satisfied(client, now)
            if not turn.is_open:
                self._closer.start_closing(grant, now)

    def adopt_unpermitted_turn(self, device: Device, now: float) -> None:
        """Add a grant for a process that entered without a permit, and close it, since the next client waits for it."""
        if device.grants:
            return
        for client in device.clients.values():
            process = next((process for process in client.processes.values() if process.turn), None)
            if process is None or client.grant:
                continue
            devices = _entered_devices(process)
            if not self._grants_of_other_turns(devices, process.turn):
                self._closer.start_closing(self._start_turn(client, process.turn, devices, now), now)
                return

    def _start_turn(self, client: Client, turn: int, devices: tuple[str, ...], granted_at: float) -> Grant:
        return_wait, is_return = self._return_of(client, turn, devices, granted_at)
        self._table.leave_queue(client, self._table.now)
        joined = [
            (device, grant) for device in (self._table.devices[uuid] for uuid in devices) for grant in device.grants
        ]
        follows_other = any(self._table.devices[uuid].last_client is not client for uuid in devices)
        grant = self._table.add_grant(client, turn, devices, granted_at)
        grant.follows_other_client = follows_other
        # Otherwise a short quantum would be over before the memory is back, turn after turn.
        evicted = self._restorable_bytes(client) if client.restores_memory else 0
        grant.restore_seconds = grant.max_restore_seconds = min(
            max(client.switch_cost.restore, evicted / MIN_RESTORE_BYTES_PER_SECOND) if evicted else 0.0,
            MAX_QUANTUM_SECONDS,
        )
        grant.return_wait, grant.is_return = return_wait, is_return
        if not evicted:
            self._closer.charge_return(grant, 0.0, self._table.now)
        for device, other in joined:  # an overrun has had its turn, so it waits for its next turn
            other.is_separating = other.is_separating or admits_others(other, device.settings, self._table.now)
        self._mark_obtained(devices)
        if client.needs_more_devices:
            self._table.enter_queue(client, self._table.now)
        if client.suspended:
            self._closer.start_closing(grant, self._table.now)
        return grant

    def _return_of(
        self, client: Client, turn: int, devices: Iterable[str], granted_at: float
    ) -> tuple[float | None, bool]:
        """Return the seconds for which offline clients let an online client wait, and whether they had turns meanwhile.

        None: they have no part in the beginning of this turn. The client may have waited until its own memory had left
        for them.
        """
        if client.service_rank:
            return None, False
        bindings = [self._table.devices[uuid] for uuid in devices]
        is_return = any(
            device.offline_until >= client.last_turn_ended_at
            or (client.memory_on(device).evicted_bytes and any(_takes_room(grant.client) for grant in device.grants))
            for device in bindings
        )
        others = {device.last_client for device in bindings} - {client, None}
        if any(other and not other.service_rank for other in others):
            return (0.0, True) if is_return else (None, False)
        if client.waiting_since is None:
            return 0.0, is_return
        waits = [granted_at - one.waiting_at_gate_since for one in client.processes.values() if one.turn == turn]
        return max((seconds for seconds in waits if seconds < math.inf), default=0.0), is_return

    def _restorable_bytes(self, client: Client) -> int:
        """Return the evicted bytes that come back with a turn of the client."""
        evicted = client.memory_use.evicted_bytes
        if client.turn_bound is None:
            return evicted
        return min(evicted, sum(client.missing_on(device) for device in client.device_bindings))

    def _extend_turn(self, grant: Grant, devices: tuple[str, ...], now: float) -> None:
        """Add further devices to the grant."""
        self._table.charge_time(grant, now)
        self._table.set_evicted(grant.client, False)
        for other in self._grants_of_other_turns(devices, grant.turn):
            self._end_replaced_turn(other, now)
        self._table.add_devices(grant, devices, now)
        self._mark_obtained(devices)

    def _mark_obtained(self, devices: Iterable[str]) -> None:
        for uuid in devices:
            self._table.devices[uuid].taken_by_other_since = self._table.devices[uuid].yielded_until = None

    def _grants_of_other_turns(self, devices: Iterable[str], turn: int) -> list[Grant]:
        found = [grant for uuid in devices for grant in self._table.devices[uuid].grants if grant.turn != turn]
        return list(dict.fromkeys(found))

    def _free_since(self, devices: Iterable[str]) -> float:
        return max(self._table.devices[uuid].free_since for uuid in devices)

    def _end_replaced_turn(self, grant: Grant, now: float) -> None:
        """End a turn that is over, because another client has the lock of its device, whatever its processes report."""
        for process in grant.processes:
            process.turn = 0
        self._closer.finish_turn(grant, now)


def _entered_devices(process: Process) -> tuple[str, ...]:
    """Return the devices of the turn that the process has entered.

    The process may have entered by an earlier permit than that on its page, after it had ceased to wait.
    """
    client = process.client
    permitted = client.permitted_devices.get(process.turn, ())
    return tuple(uuid for uuid in permitted if uuid in client.devices) or process.devices


def _takes_room(client: Client) -> bool:
    """Return whether memory of online clients leaves for the client."""
    return client.service_rank > 0 and client.turn_limit is None
