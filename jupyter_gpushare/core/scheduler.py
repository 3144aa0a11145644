"""Interface of the scheduler: `handle(event, now) -> [command]` and `next_deadline()`.

The rules are in docs/explanation/turns.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from ..units import format_size, size_word
from .base.errors import Conflict, GpuShareError, IllegalEvent, Refused
from .handlers.client_moves import ClientMoves
from .handlers.idle_policy import IdlePolicy
from .handlers.placement_adapter import PlacementAdapter
from .handlers.process_events import ProcessEventHandlers
from .handlers.user_requests import UserRequests
from .handlers.waiting_moves import WaitingMoves
from .interface import events as ev
from .interface.commands import Command, UpdateQuota
from .interface.settings import Settings
from .residency.residency_plan import ResidencyPlanner
from .state.model import Client, EntityRegistry, Process
from .turns.grant_table import FIRST_TURN
from .turns.turn_scheduler import TurnScheduler

_MAX_LOGGED_EVENTS = 200


class Scheduler:
    """Deterministic scheduler that decides which client runs on which device and until when.

    A scheduler has no clock and does no input or output.
    """

    def __init__(self, settings: Settings | None = None, first_turn: int = FIRST_TURN) -> None:
        """Start a scheduler whose turns have numbers from `first_turn` on.

        No other coordinator may use these numbers.
        """
        self.registry = EntityRegistry()
        self.clients, self.devices, self.processes = (
            self.registry.clients,
            self.registry.devices,
            self.registry.processes,
        )
        self._registered = 0
        self._now = float("-inf")
        self._commands: list[Command] = []
        self.turns = TurnScheduler(settings or Settings(), self.devices, self._commands, first_turn)
        self._table = self.turns.table
        self.residency = ResidencyPlanner(self.clients, self.devices)
        self.placement_adapter = PlacementAdapter(self.settings.placement, self.clients, self._table, self._commands)
        user_requests = UserRequests(self.registry, self._table, self.turns.closer, self._commands)
        process_events = ProcessEventHandlers(
            self.registry, self._table, self.turns.closer, self.turns.starter, self.turns.colocation
        )
        self._moves = ClientMoves(
            self.registry,
            self._table,
            self.turns.closer,
            self.placement_adapter.placement,
            self._set_devices,
            self._commands,
        )
        self.idle_policy = IdlePolicy(
            self.clients, self._table, user_requests, self.placement_adapter, self._moves, self._commands
        )
        self._waiting_moves = WaitingMoves(self._table, self.placement_adapter, self._moves)
        self._event_log: deque[tuple[float, ev.Event, tuple[Command, ...]]] = deque(maxlen=_MAX_LOGGED_EVENTS)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ev.ClientRegistered: self._on_client_registered,
            ev.ClientRemoved: self._on_client_removed,
            ev.DeviceFound: self._on_device_found,
            ev.DeviceFailed: self._on_device_failed,
            ev.DeviceRecovered: lambda event, now: self.placement_adapter.on_device_recovered(event.device, now),
            ev.LockContended: self._on_lock_contended,
            ev.DevicesRequested: lambda event, now: self.placement_adapter.bind(
                self.registry.client(event.client), now
            ),
            ev.ProcessJoined: self._on_process_joined,
            ev.ProcessGone: self._on_process_gone,
            ev.QuotaChanged: self._on_quota_changed,
            ev.SettingsChanged: self._on_settings_changed,
            ev.Tick: lambda event, now: None,
            **process_events.handlers,
            **user_requests.handlers,
            **self._moves.handlers,
        }

    # --- interface

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """Return the commands that follow from `event` at time `now` (seconds, never decreasing).

        Raises Refused for a request that cannot be granted, and IllegalEvent for an event that cannot happen in this
        state. An event that raises changes nothing.
        """
        if now < self._now:
            raise IllegalEvent(f"time went back from {self._now} to {now}")
        self._table.now = now
        try:
            self._handlers[type(event)](event, now)
        except GpuShareError:
            self._table.now = self._now
            raise
        self._now = now
        self.idle_policy.apply(now)
        self._waiting_moves.apply(now)
        self._moves.advance(now)
        touched = self.turns.advance(now)
        self.idle_policy.update(now)  # again, because advance() may have adopted a turn that began without a permit
        # The residency commands come first, because a process whose gate closes reads its resident target.
        commands = [*self.residency.plan(touched, now), *self._commands]
        self._commands.clear()
        self._event_log.append((now, event, tuple(commands)))
        return commands

    def next_deadline(self) -> float | None:
        """Return when to send Tick if no other event comes before; None: no Tick is needed."""
        parts = (self.turns, self.idle_policy, self._moves, self._waiting_moves)
        deadlines = [part.next_deadline() for part in parts]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    @property
    def settings(self) -> Settings:
        """The settings of the host; those of a device are `Device.settings`."""
        return self._table.policies.host_settings

    def settings_of(self, client: Client) -> Settings:
        """Return the settings of the client's turns, which are those of its first device."""
        return self._table.policies.settings_of(client)

    def unknown_devices(self, settings: Settings) -> list[str]:
        """Return the words of the setting `devices` that name no device of this host."""
        return [word for word in settings.devices if not self.placement_adapter.placement.devices_named(word)]

    def queue(self, device: str, now: float) -> list[Client]:
        """Return the clients that wait for `device`, the next client first."""
        return self.devices[device].queue.in_order(now)

    def quantum(self, client: Client) -> float:
        return self._table.policies.policy_of(client).quantum(client)

    def idle_release(self, client: Client) -> float:
        return self._table.policies.policy_of(client).idle_release(client)

    def event_log(self) -> list[str]:
        """Return the last events with their commands, for error reports."""
        return [
            f"{now:.6f} {event} -> {', '.join(map(str, commands)) or 'nothing'}"
            for now, event, commands in self._event_log
        ]

    # --- clients, processes, devices

    def _on_client_registered(self, event: ev.ClientRegistered, now: float) -> None:
        client = self.clients.get(event.client)
        if client is None:
            client = self.placement_adapter.admit(event, self._registered + 1)
            self._registered += 1
            self.clients[event.client] = client
            self._table.set_devices(client, self.placement_adapter.devices_of(client), now)
            self._table.apply_quota(client, now)
            self.placement_adapter.update_guests(now)
        elif client.user != event.user:
            raise IllegalEvent(f"client {event.client} belongs to user {client.user!r}, not {event.user!r}")
        elif not event.running:
            self.placement_adapter.restart(client, now)
            self.idle_policy.on_restart(client, now)
        client.label = event.label or client.label
        self._commands.append(UpdateQuota(client.id))

    def _on_client_removed(self, event: ev.ClientRemoved, now: float) -> None:
        client = self.registry.client(event.client)
        if client.processes:
            raise IllegalEvent(f"client {client.id} still has processes")
        self._moves.on_client_removed(client, now)
        self._table.leave_queue(client, now)
        self._table.set_devices(client, (), now)
        self.placement_adapter.remove(client, now)
        for policy in self._table.policies.all():
            policy.remove(client)
        self.turns.colocation.remove(client)
        self._table.permits.remove(client)
        self.residency.remove(client)
        del self.clients[client.id]

    def _on_device_found(self, event: ev.DeviceFound, now: float) -> None:
        known = self.devices.get(event.device.uuid)
        if known:
            known.info = event.device
            known.memory_version += 1
        else:
            self.turns.add_device(event.device)
        self.placement_adapter.on_device_found(event.device)
        if self.settings.devices:
            self.turns.configure(self.settings, self._device_overrides(self.settings), now)
        self._table.dirty_devices[event.device.uuid] = None

    def _on_device_failed(self, event: ev.DeviceFailed, now: float) -> None:
        def move(client: Client, device: str) -> None:
            self._moves.leave_failed(client, device, now)

        self._moves.on_device_failed(event.device, now)
        self.placement_adapter.on_device_failed(event.device, event.reason, now, move if event.works else None)

    def _on_process_joined(self, event: ev.ProcessJoined, now: float) -> None:
        client = self.registry.client(event.client)
        if event.process in self.processes:
            raise IllegalEvent(f"process {event.process} has joined already")
        if not event.devices:
            raise IllegalEvent(f"process {event.process} uses no device")
        if unknown := set(event.devices) - set(self.devices):
            raise IllegalEvent(f"process {event.process} uses unknown devices {sorted(unknown)}")
        client.bound_at = -math.inf
        process = self.processes[event.process] = Process(
            event.process, client, event.devices, hibernated=event.hibernated
        )
        client.processes[event.process] = process
        self._moves.on_process_joined(client, now)
        self._set_devices(client, now)
        self._commands.append(UpdateQuota(client.id))
        if event.turn:
            self.turns.starter.adopt_turn(process, event.turn, now)
        self._table.permits.on_process_joined(client)

    def _set_devices(self, client: Client, now: float) -> None:
        """Set the client's devices to the devices that its processes use, and the device that it moves to.

        All clients have their devices in one order, so that gangs lock devices without deadlock.
        """
        used = tuple(sorted({uuid for process in client.processes.values() for uuid in process.devices}))
        used = used or self.placement_adapter.devices_of(client)
        devices = tuple(sorted({*used, client.moving_to} - {""}))
        if devices != client.devices:
            self._table.set_devices(client, devices, now)
        if set(used) != set(self.placement_adapter.devices_of(client)):
            self.placement_adapter.on_devices_changed(client, used, now)
        self._table.mark_dirty(client)

    def _on_process_gone(self, event: ev.ProcessGone, now: float) -> None:
        process = self.registry.process(event.process)
        client = process.client
        del self.processes[process.number], client.processes[process.number]
        self._moves.on_process_gone(client, now)
        self._set_devices(client, now)
        if client.grant and not client.grant.processes:
            self.turns.closer.finish_turn(client.grant, now)
        self._table.leave_queue_if_satisfied(client, now)

    def _on_lock_contended(self, event: ev.LockContended, now: float) -> None:
        device = self.devices.get(event.device)
        if device is None:
            raise IllegalEvent(f"device {event.device} is unknown")
        self._table.set_lock_contended(device, event.contended, now)

    # --- quotas and settings

    def _on_quota_changed(self, event: ev.QuotaChanged, now: float) -> None:
        client = self.registry.client(event.client)
        memory = event.quota.memory
        if memory is not None and memory != client.quota.memory and memory < event.allocated:
            raise Conflict(
                f"memory={size_word(memory)} is below what is allocated now, {format_size(event.allocated)}: "
                f"free some first, or ask for at least {format_size(event.allocated, math.ceil)}"
            )
        self.placement_adapter.change_quota(client, event.quota)
        client.quota = event.quota
        self._table.apply_quota(client, now)
        self._table.update_forced_eviction(client)
        self._commands.append(UpdateQuota(client.id))

    def _on_settings_changed(self, event: ev.SettingsChanged, now: float) -> None:
        overrides = self._device_overrides(event.settings)
        unknown = [word for word in self.unknown_devices(event.settings) if word not in self.settings.devices]
        if unknown:
            known = "; ".join(map(self.placement_adapter.placement.display_name, self.devices)) or "none"
            raise Refused(f"devices: {unknown[0]!r} does not exist: allowed are UUIDs, indexes and names of {known}")
        self.placement_adapter.placement.configure(event.settings.placement)
        self.turns.configure(event.settings, overrides, now)
        self.idle_policy.on_settings_changed()
        self.placement_adapter.reassign_tenants(event.tenants, now)

    def _device_overrides(self, settings: Settings) -> dict[str, dict[str, Any]]:
        """Return the own settings of each device. Of several words for one device, the last one counts."""
        found: dict[str, dict[str, Any]] = {}
        for word, values in settings.devices.items():
            for uuid in self.placement_adapter.placement.devices_named(word):
                found.setdefault(uuid, {}).update(values)
        return found
