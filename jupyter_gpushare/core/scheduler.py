"""The scheduler's one door: `handle(event, now) -> [command]` and `next_deadline()`.

A client is idle, waiting, running or draining. It waits from the first thread that stands at the gate; a Grant opens
the gates of all its processes on all its devices at once (a gang); closing ends when every process has drained. Because
one process's work on the device may depend on a thread that now stands at the gate, closing is retried: see
`Closing.retry_closing`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from . import events as ev
from .commands import Close, Command, Limits
from .errors import Conflict, GpuShareError, IllegalEvent, Refused, UnknownClient
from .grants import EPOCHS
from .memory import Residence
from .model import Client, Device, Held, Process
from .placing import Placing
from .policies import policy_of
from .settings import Settings
from .turns import Turns

_STORY = 200


class Scheduler:
    """Decides who runs on which device and until when. Deterministic; keeps no clock and does no input or output."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.clients: dict[str, Client] = {}
        self.devices: dict[str, Device] = {}
        self.processes: dict[int, Process] = {}
        self._registered = 0
        self._now = float("-inf")
        self._out: list[Command] = []
        self.turns = Turns(settings or Settings(), self.devices, self._out)
        self.residence = Residence(self.clients, self.devices)
        self.placing = Placing(self.settings.placement, self.clients, self.turns, self._out)
        self._story: deque[tuple[float, ev.Event, tuple[Command, ...]]] = deque(maxlen=_STORY)
        self._handlers: dict[type, Callable[[Any, float], None]] = {
            ev.ClientRegistered: self._client_registered,
            ev.ClientForgotten: self._client_forgotten,
            ev.DeviceFound: self._device_found,
            ev.DeviceFailed: lambda event, now: self.placing.failed(event.device, event.reason, now),
            ev.DeviceRecovered: lambda event, now: self.placing.recovered(event.device, now),
            ev.ProcessJoined: self._process_joined,
            ev.ProcessGone: self._process_gone,
            ev.Wanted: self._wanted,
            ev.Unwanted: self._unwanted,
            ev.Drained: self._drained,
            ev.Evicting: self._evicting,
            ev.Restored: self._restored,
            ev.MemoryHeld: self._memory_held,
            ev.WentIdle: self._went_idle,
            ev.WentBusy: self._went_busy,
            ev.CellStarted: self._cell_started,
            ev.CellEnded: self._cell_ended,
            ev.TurnReleased: self._turn_released,
            ev.TurnHeld: self._turn_held,
            ev.Evicted: self._evicted,
            ev.Suspended: self._suspended,
            ev.Resumed: self._resumed,
            ev.Progress: self._progress,
            ev.QuotaChanged: self._quota_changed,
            ev.SettingsChanged: self._settings_changed,
            ev.LockRefused: self._lock_refused,
            ev.TimePassed: lambda event, now: None,
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
        touched = self.turns.advance(now)
        # First: a process whose gate closes looks at what it may keep.
        commands = [*self.residence.settle(touched, now), *self._out]
        self._out.clear()
        self._story.append((now, event, tuple(commands)))
        return commands

    def next_deadline(self) -> float | None:
        """When to send TimePassed, unless something else happens before; None: not at all."""
        return self.turns.next_deadline()

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
        client.label = event.label or client.label
        self._out.append(Limits(client.id))

    def _client_forgotten(self, event: ev.ClientForgotten, now: float) -> None:
        client = self._client(event.client)
        if client.processes:
            raise IllegalEvent(f"client {client.id} still has processes")
        self.turns.leave_queue(client, now)
        self.turns.place(client, (), now)
        self.placing.leave(client, now)
        self.turns.policy.forget(client)
        self.turns.sharing.forget(client)
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
        client = self._client(event.client)
        if event.process in self.processes:
            raise IllegalEvent(f"process {event.process} has joined already")
        if not event.devices:
            raise IllegalEvent(f"process {event.process} uses no device")
        if unknown := set(event.devices) - set(self.devices):
            raise IllegalEvent(f"process {event.process} uses unknown devices {sorted(unknown)}")
        process = Process(event.process, client, event.devices, relays=event.relays)
        if client.grant:
            self.turns.name_next(client.grant, None)  # before the new one runs under the lock that would be given up
        self.processes[event.process] = client.processes[event.process] = process
        self._set_devices(client, now)
        # Only half of them may be claimed, or a hostile process could make the epochs of others repeat.
        self.turns.epoch = max(self.turns.epoch, min(event.epoch, EPOCHS // 2))
        self._out.append(Limits(client.id))
        grant = client.grant
        if event.running:
            if not self.turns.adopt(process, now, event.shared):
                self._out.append(Close(client.id, event.epoch, (process.number,)))
        elif grant and grant.gate_open and process in grant.processes:
            self.turns.let_run(grant, [process])

    def _set_devices(self, client: Client, now: float) -> None:
        """A client's devices are what its processes use, in one order for all so that gangs lock without deadlock."""
        devices = tuple(sorted({uuid for process in client.processes.values() for uuid in process.devices}))
        if devices and devices != client.devices:
            self.turns.place(client, devices, now)
            self.placing.moved(client, devices, now)
        self.turns.touch(client)

    def _process_gone(self, event: ev.ProcessGone, now: float) -> None:
        process = self._process(event.process)
        client = process.client
        del self.processes[process.number], client.processes[process.number]
        self._set_devices(client, now)
        if client.grant and all(other.drained for other in client.processes.values()):
            self.turns.finish(client.grant, now)
        self.turns.leave_queue_if_content(client, now)

    # --- wanting, running, draining

    def _wanted(self, event: ev.Wanted, now: float) -> None:
        process = self._process(event.process)
        client = process.client
        grant = client.grant
        if grant and grant.gate_open:
            if grant.has_open(process):
                return  # sent before its gate opened
            # It uses a device that this grant does not cover, so that a new grant must; or it is not of this slice.
            process.wants, process.wants_since = True, now
            self.turns.begin_closing(grant, now)
            return
        if not process.wants:
            process.wants_since = now
        process.wants = True
        self.turns.touch(client)
        if grant is None:
            self.turns.enter_queue(client, now, now)

    def _unwanted(self, event: ev.Unwanted, now: float) -> None:
        process = self._process(event.process)
        process.wants = False
        self.turns.touch(process.client)
        self.turns.leave_queue_if_content(process.client, now)

    def _drained(self, event: ev.Drained, now: float) -> None:
        process = self._process(event.process)
        grant = process.client.grant
        if event.epoch > self.turns.epoch:
            raise IllegalEvent(f"process {event.process} drained of epoch {event.epoch}, which was never granted")
        if not grant or event.epoch != process.epoch or (grant.reopen_until is not None and grant.has_open(process)):
            return  # of a closing that was taken back meanwhile
        process.drained = True
        process.evicting = False
        self.turns.touch(process.client)
        self.turns.begin_closing(grant, now)  # its agent may have closed by itself, at the deadline that it was told
        if all(other.drained for other in process.client.processes.values()):
            self.turns.finish(grant, now)
        else:
            self.turns.slice_helped(grant, now)

    def _evicting(self, event: ev.Evicting, now: float) -> None:
        process = self._process(event.process)
        grant = process.client.grant
        if not grant or process.drained or event.epoch != process.epoch or not grant.has_closed(process):
            return  # of a closing that was taken back meanwhile
        process.evicting = True
        if all(p.evicting or p.drained for p in grant.client.processes.values()):
            grant.evicting_since = now

    def _restored(self, event: ev.Restored, now: float) -> None:
        process = self._process(event.process)
        grant = process.client.grant
        if not grant or event.epoch != process.epoch:
            return
        # Whatever it says, its turn is not longer than two quanta, or than its memory was expected to take.
        longest = max(self.turns.quantum(process.client), process.client.switching.cost, grant.expected_lead)
        lead = min(now - grant.began, longest)
        grant.lead = max(grant.lead, lead) if grant.restored else lead
        grant.restored = True
        self.turns.touch(process.client)

    def _memory_held(self, event: ev.MemoryHeld, now: float) -> None:
        client = self._client(event.client)
        client.short = event.short
        self.turns.hold(client, Held(event.allocated, event.resident, event.pinned))
        self.turns.touch(client)

    def _went_idle(self, event: ev.WentIdle, now: float) -> None:
        process = self._process(event.process)
        grant = process.client.grant
        if not grant or grant.draining or event.epoch != grant.epoch or not self.turns.contended(grant):
            return
        process.idle_epoch = event.epoch
        held = process.client.hold_until
        if grant.idle and (held is None or held <= now):
            self.turns.begin_closing(grant, now)
        self.turns.touch(process.client)

    def _went_busy(self, event: ev.WentBusy, now: float) -> None:
        process = self._process(event.process)
        if process.idle_epoch == event.epoch:
            process.idle_epoch = -1
            self.turns.touch(process.client)

    def _cell_started(self, event: ev.CellStarted, now: float) -> None:
        client = self._client(event.client)
        if not client.cells:
            client.cells_since = now
        client.cells.add(event.request)
        if client.grant:
            client.grant.cells_ended = None
        self.turns.touch(client)

    def _cell_ended(self, event: ev.CellEnded, now: float) -> None:
        client = self._client(event.client)
        # One that is not known began with an earlier coordinator, and ended before its kernel was back.
        client.cells.discard(event.request)
        if client.grant and not client.cells:
            client.grant.cells_ended = now
        self.turns.touch(client)

    def _turn_released(self, event: ev.TurnReleased, now: float) -> None:
        client = self._client(event.client)
        client.hold_until = None
        if client.grant and not client.grant.draining:
            self.turns.begin_closing(client.grant, now)

    def _turn_held(self, event: ev.TurnHeld, now: float) -> None:
        client = self._client(event.client)
        most = self.settings.max_hold
        if not 0 <= event.seconds <= most:
            raise Refused(f"hold={event.seconds:g} is out of range: allowed are 0 to {most:g} seconds (max_hold)")
        if client.suspended and event.seconds:
            raise Conflict(f"client {client.id} is suspended and has nothing to hold: resume it first")
        if client.held_for(now) is None:
            client.holding_since = now
        # One hold after the other is no way around the longest one.
        client.hold_until = min(now + event.seconds, client.holding_since + most) if event.seconds else None
        self.turns.touch(client)

    def _evicted(self, event: ev.Evicted, now: float) -> None:
        client = self._client(event.client)
        client.evicted = True
        client.hold_until = None
        if client.grant and not client.grant.draining:
            self.turns.begin_closing(client.grant, now)
        self.turns.bound(client)
        self.turns.touch(client)

    def _suspended(self, event: ev.Suspended, now: float) -> None:
        client = self._client(event.client)
        client.suspended = True
        client.hold_until = None
        self.turns.leave_queue(client, now)
        if client.grant and not client.grant.draining:
            self.turns.begin_closing(client.grant, now)
        self.turns.bound(client)
        self.turns.touch(client)

    def _resumed(self, event: ev.Resumed, now: float) -> None:
        client = self._client(event.client)
        client.suspended = False
        if client.wants and client.grant is None:
            self.turns.enter_queue(client, now, now)
        self.turns.bound(client)
        self.turns.touch(client)

    def _progress(self, event: ev.Progress, now: float) -> None:
        client = self._client(event.client)
        alone = all(len(device.grants) < 2 for device in client.books)
        client.demand.progress(event.gpu_seconds, client.gpu_seconds_at(now), alone)
        self.turns.sharing.progress(client, event, now)
        if any(len(device.grants) > 1 or device.line for device in client.books):
            self.turns.touch(client)

    def _lock_refused(self, event: ev.LockRefused, now: float) -> None:
        client = self._client(event.client)
        if not client.grant or client.grant.epoch != event.epoch:
            raise IllegalEvent(f"client {event.client} has no grant of epoch {event.epoch}")
        self.turns.take_back(client.grant, now)

    # --- quotas and settings

    def _quota_changed(self, event: ev.QuotaChanged, now: float) -> None:
        client = self._client(event.client)
        memory = event.quota.memory
        if memory is not None and memory != client.quota.memory and memory < event.allocated:
            raise Conflict(
                f"memory={memory} is below what is allocated now, {event.allocated} bytes: "
                "free some first, or ask for at least that much"
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
        self.placing.settle(now)

    # --- looking up

    def _client(self, identity: str) -> Client:
        try:
            return self.clients[identity]
        except KeyError:
            raise UnknownClient(f"no client {identity!r} is known here") from None

    def _process(self, number: int) -> Process:
        try:
            return self.processes[number]
        except KeyError:
            raise IllegalEvent(f"no process {number} has joined") from None
