"""The scheduler's one door: `handle(event, now) -> [command]` and `next_deadline()`.

A client is idle, waiting, running or draining. It waits from the first thread that stands at the gate. The first client
in the line has a permit: its processes enter the turn by themselves, on all its devices at once (a gang), as soon as
the devices' locks admit them, and report that. A turn ends when every process has drained and left. The rule
and the tables are in docs/explanation/turns.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

from ..units import format_size, size_word
from . import events as ev
from .commands import Command, Limits
from .errors import Conflict, GpuShareError, IllegalEvent
from .grants import FIRST_TURN
from .idleness import Idleness
from .known import Known
from .memory import Residence
from .model import Client, Process
from .placing import Placing
from .policies import policy_of
from .reports import Reports
from .settings import Settings
from .turns import Turns
from .wishes import Wishes

_STORY = 200


class Scheduler:
    """Decides who runs on which device and until when. Deterministic; keeps no clock and does no input or output."""

    def __init__(self, settings: Settings | None = None, first_turn: int = FIRST_TURN) -> None:
        """Turns have numbers from `first_turn` on, which no other coordinator's turns may have."""
        self.known = Known()
        self.clients, self.devices, self.processes = self.known.clients, self.known.devices, self.known.processes
        self._registered = 0
        self._now = float("-inf")
        self._out: list[Command] = []
        self.turns = Turns(settings or Settings(), self.devices, self._out, first_turn)
        self.residence = Residence(self.clients, self.devices)
        self.placing = Placing(self.settings.placement, self.clients, self.turns, self._out)
        wishes = Wishes(self.known, self.turns, self._out)
        self.idleness = Idleness(self.clients, self.turns, wishes, self._out)
        self._story: deque[tuple[float, ev.Event, tuple[Command, ...]]] = deque(maxlen=_STORY)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ev.ClientRegistered: self._client_registered,
            ev.ClientForgotten: self._client_forgotten,
            ev.DeviceFound: self._device_found,
            ev.DeviceFailed: lambda event, now: self.placing.failed(event.device, event.reason, now),
            ev.DeviceRecovered: lambda event, now: self.placing.recovered(event.device, now),
            ev.LockWanted: self._lock_wanted,
            ev.ProcessJoined: self._process_joined,
            ev.ProcessGone: self._process_gone,
            ev.QuotaChanged: self._quota_changed,
            ev.SettingsChanged: self._settings_changed,
            ev.TimePassed: lambda event, now: None,
            **Reports(self.known, self.turns).handlers,
            **wishes.handlers,
        }

    # --- the door

    def handle(self, event: ev.Event, now: float) -> list[Command]:
        """What to do about `event` at time `now` (seconds, never decreasing).

        Raises Refused for a request that cannot be granted and IllegalEvent for an event that cannot happen in this
        state; either has changed nothing.
        """
        if now < self._now:
            raise IllegalEvent(f"time went back from {self._now} to {now}")
        self.turns.now = now
        try:
            self._handlers[type(event)](event, now)
        except GpuShareError:
            self.turns.now = self._now
            raise
        self._now = now
        self.idleness.settle(now)
        touched = self.turns.advance(now)
        self.idleness.look(now)  # a turn that has begun without a permit is found there
        # First: a process whose gate closes looks at what it may keep.
        commands = [*self.residence.settle(touched, now), *self._out]
        self._out.clear()
        self._story.append((now, event, tuple(commands)))
        return commands

    def next_deadline(self) -> float | None:
        """When to send TimePassed, unless something else happens before; None: not at all."""
        dues = (self.turns.next_deadline(), self.idleness.next_deadline())
        return min((due for due in dues if due is not None), default=None)

    @property
    def settings(self) -> Settings:
        return self.turns.settings

    def queue(self, device: str, now: float) -> list[Client]:
        """The clients that wait for `device`, the next one first."""
        return self.devices[device].line.ordered(now)

    def quantum(self, client: Client) -> float:
        return self.turns.quantum(client)

    def idle_release(self, client: Client) -> float:
        return self.turns.idle_release(client)

    def story(self) -> list[str]:
        """The last events and what was decided, for error reports."""
        return [
            f"{now:.6f} {event} -> {', '.join(map(str, commands)) or 'nothing'}" for now, event, commands in self._story
        ]

    # --- clients, processes, devices

    def _client_registered(self, event: ev.ClientRegistered, now: float) -> None:
        client = self.clients.get(event.client)
        if client is None:
            client = self.placing.come(event, self._registered + 1)
            self._registered += 1
            self.clients[event.client] = client
            self.turns.place(client, self.placing.devices_of(client), now)
            self.turns.read_quota(client, now)
            self.placing.settle(now)
        elif client.tenant != event.tenant:
            raise IllegalEvent(f"client {event.client} belongs to tenant {client.tenant!r}, not {event.tenant!r}")
        elif not event.running:
            self.placing.again(client, now)
            self.idleness.restarts(client, now)
        client.label = event.label or client.label
        self._out.append(Limits(client.id))

    def _client_forgotten(self, event: ev.ClientForgotten, now: float) -> None:
        client = self.known.client(event.client)
        if client.processes:
            raise IllegalEvent(f"client {client.id} still has processes")
        self.turns.leave_queue(client, now)
        self.turns.place(client, (), now)
        self.placing.leave(client, now)
        self.turns.policy.forget(client)
        self.turns.sharing.forget(client)
        self.turns.permits.forget(client)
        self.residence.forget(client)
        del self.clients[client.id]

    def _device_found(self, event: ev.DeviceFound, now: float) -> None:
        known = self.devices.get(event.device.uuid)
        if known:
            known.info = event.device
            known.changes += 1
        else:
            self.turns.add_device(event.device)
        self.placing.found(event.device)
        self.turns.touched[event.device.uuid] = None

    def _process_joined(self, event: ev.ProcessJoined, now: float) -> None:
        client = self.known.client(event.client)
        if event.process in self.processes:
            raise IllegalEvent(f"process {event.process} has joined already")
        if not event.devices:
            raise IllegalEvent(f"process {event.process} uses no device")
        if unknown := set(event.devices) - set(self.devices):
            raise IllegalEvent(f"process {event.process} uses unknown devices {sorted(unknown)}")
        process = self.processes[event.process] = Process(event.process, client, event.devices)
        client.processes[event.process] = process
        self._set_devices(client, now)
        self._out.append(Limits(client.id))
        if event.turn:
            self.turns.adopt(process, event.turn, now)
        self.turns.permits.joined(client)

    def _set_devices(self, client: Client, now: float) -> None:
        """A client's devices are what its processes use, in one order for all so that gangs lock without deadlock."""
        devices = tuple(sorted({uuid for process in client.processes.values() for uuid in process.devices}))
        if devices and devices != client.devices:
            self.turns.place(client, devices, now)
            self.placing.moved(client, devices, now)
        self.turns.touch(client)

    def _process_gone(self, event: ev.ProcessGone, now: float) -> None:
        process = self.known.process(event.process)
        client = process.client
        del self.processes[process.number], client.processes[process.number]
        self._set_devices(client, now)
        if client.grant and not client.grant.processes:
            self.turns.finish(client.grant, now)
        self.turns.leave_queue_if_content(client, now)

    def _lock_wanted(self, event: ev.LockWanted, now: float) -> None:
        device = self.devices.get(event.device)
        if device is None:
            raise IllegalEvent(f"device {event.device} is unknown")
        self.turns.wanted_elsewhere(device, event.wanted, now)

    # --- quotas and settings

    def _quota_changed(self, event: ev.QuotaChanged, now: float) -> None:
        client = self.known.client(event.client)
        memory = event.quota.memory
        if memory is not None and memory != client.quota.memory and memory < event.allocated:
            raise Conflict(
                f"memory={size_word(memory)} is below what is allocated now, {format_size(event.allocated)}: "
                f"free some first, or ask for at least {format_size(event.allocated, math.ceil)}"
            )
        self.placing.change(client, event.quota)
        client.quota = event.quota
        self.turns.read_quota(client, now)
        self.turns.bound(client)
        self._out.append(Limits(client.id))

    def _settings_changed(self, event: ev.SettingsChanged, now: float) -> None:
        policy_of(event.settings)  # raises, before anything has changed
        self.placing.placement.configure(event.settings.placement)
        self.turns.configure(event.settings, now)
        self.idleness.settings_changed()
        self.placing.regroup(event.groups, now)
