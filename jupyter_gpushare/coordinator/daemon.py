"""The daemon: carries events from its edges to the scheduler and the scheduler's commands back."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import deque
from typing import Any

from .. import __version__
from ..core import Scheduler
from ..core import commands as cmd
from ..core import events as ev
from ..core.errors import Conflict, GpuShareError, Refused
from ..core.memory import room
from ..core.model import DeviceInfo, Held
from ..core.outlook import expected_waits
from ..core.placement import Request
from ..core.quota import Quota
from ..core.settings import EXCLUSIVE
from ..wire import messages
from . import devices, health, hostmemory, snapshot, topology
from .followers import Followers
from .history import History
from .kept import Kept
from .locks import Mode
from .measures import Measures
from .members import Member, ProcessPort
from .peer import Peer
from .progress import ProgressReports
from .settings import LiveSettings
from .utilisation import Utilisation

HEARTBEAT = 1.0
AGENTS_FIRST = 0.003  # processes close their gates at the deadline by themselves; this late we see that they do
FREE_RETRY = 0.02  # how soon to look again at a process out of reach that has its device; then with every heartbeat
GRACE = 60.0  # how long a client without any connection is remembered

log = logging.getLogger(__name__)


class Daemon:
    """All state of a running coordinator. Everything happens on one event loop."""

    def __init__(self, settings: LiveSettings, socket_path: str) -> None:
        self.kept = Kept(socket_path)
        self.settings = self.kept.restore(settings)
        self.socket_path = socket_path
        self.nvml = devices.Nvml()
        found = devices.simulated() if settings.traits.simulate else self.nvml.devices()
        self.health = health.Health(*((None, {}) if settings.traits.simulate else self.nvml.handles))
        self.scheduler = self._scheduler(found)
        self.members: dict[str, Member] = {}
        self.ports: dict[int, ProcessPort] = {}
        self.followers = Followers(self.status, self._owners)
        self._kept_locked: dict[str, tuple[str, ...]] = {}
        self._loop = asyncio.get_running_loop()
        self._events: deque[ev.Event] = deque()
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._forgotten = Measures()
        self.progress = ProgressReports()
        self.utilisation = Utilisation(self.nvml)
        self.history = History(self._loop.time())
        self._began = time.monotonic()
        self._deserted_since = self._began
        for info in found:
            self._found(info)
        if self.scheduler.placing.placement.unmet:
            log.error("%s: what they are guaranteed does not hold", self.scheduler.placing.placement.unmet)
        self._pulse = self._loop.call_later(0, self._beat)

    def close(self) -> None:
        """Stop the timers and let go of every page and lock; clients run on and look for another coordinator."""
        for handle in (self._timer, self._pulse):
            if handle:
                handle.cancel()
        self.followers.close()
        self._kept_locked.clear()
        for member in self.members.values():
            self._unwatch(member)
            member.abandon()

    @property
    def now(self) -> float:
        """Seconds, on the clock of events."""
        return self._loop.time()

    @property
    def deserted_for(self) -> float:
        """Seconds since the last client left; 0 while there is one."""
        return time.monotonic() - self._deserted_since if not self.members else 0.0

    # --- events in, commands out

    def feed(self, event: ev.Event) -> None:
        """Hand an event to the scheduler and carry out what it decides, including what follows from that.

        Raises GpuShareError for a refused request, having changed nothing.
        """
        concerned = self._whose(event)
        decided = self.scheduler.handle(event, self._loop.time())
        while True:
            for command in decided:
                concerned.add(command.client)
                self._carry_out(command)
            if not self._events:
                break
            event = self._events.popleft()
            concerned |= self._whose(event)
            decided = self.scheduler.handle(event, self._loop.time())
        now = self._loop.time()
        for client in concerned:  # of what a refused lock has undone at once, nobody hears
            self.history.look(client, self.scheduler.clients.get(client), now)
        self._arm()
        self.followers.changed()

    def _whose(self, event: ev.Event) -> set[str]:
        """The client that an event is about, if it is about one."""
        if process := self.scheduler.processes.get(getattr(event, "process", 0)):
            return {process.client.id}
        client = getattr(event, "client", "")
        return {client} if client else set()

    def _arm(self) -> None:
        due = self.scheduler.next_deadline()
        if due is not None and self.scheduler.turns.ends_turn(due):
            due += AGENTS_FIRST
        if self._timer:
            if due == self._timer.when():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        self.feed(ev.TimePassed())

    def _carry_out(self, command: cmd.Command) -> None:
        member = self.members.get(command.client)
        if member is None:
            return
        match command:
            case cmd.Grant():
                if member.stopped:
                    self._pass_over(member, command.epoch)
                elif member.locks.acquire(command.devices, self._lock_mode(command)):
                    self._open(command)
                else:
                    self._close_strays(command)
                    self._events.append(ev.LockRefused(command.client, command.epoch))
            case cmd.Open():
                if self._holds_locks(member):
                    self._open(command)
                else:
                    self._stay_closed(command)
            case cmd.NameNext():
                named, giver = self.ports.get(command.process), self.ports.get(command.giver)
                if named and giver and not member.stopped:
                    named.name_next(command.epoch)
                    giver.page.orders.hand_on = 1
            case cmd.Unname():
                if giver := self.ports.get(command.giver):
                    giver.page.orders.hand_on = 0
                if named := self.ports.get(command.process):
                    named.unname()
            case cmd.Close():
                for number in command.processes:
                    if port := self.ports.get(number):
                        port.close(command.epoch)
            case cmd.Free():
                member.last_turn = time.monotonic()
                self._free(member, command.devices)
            case cmd.Orders():
                for port in member.processes.values():
                    port.orders(command.contended, command.deadline)
            case cmd.Limits():
                self.write_limits(member)
            case cmd.SetResident():
                member.set_resident(command.bytes)
            case cmd.RestoreAhead():
                member.comes_ahead = command.wanted
                self._restore_ahead(member)
            case cmd.SetRate():
                member.set_rate(command.launch_rate, command.spacing_ppm)
            case cmd.Notice():
                log.warning("client %s: %s", member.client, command.message)
            case cmd.Overrun():
                log.warning(
                    "client %s has not drained for %.1f s: its turn is not over and others wait",
                    member.client,
                    command.seconds,
                )

    def _lock_mode(self, command: cmd.Grant) -> Mode:
        if not command.shared:
            return Mode.EXCLUSIVE
        grants = (grant for uuid in command.devices for grant in self.scheduler.devices[uuid].grants)
        return Mode.JOIN if any(grant.client.id != command.client for grant in grants) else Mode.SHARED

    def _open(self, command: cmd.Grant | cmd.Open) -> None:
        grant = self.scheduler.clients[command.client].grant
        contended = grant is not None and self.scheduler.turns.contended(grant)
        for number in command.processes:
            if port := self.ports.get(number):
                port.open(command.epoch, contended, isinstance(command, cmd.Open) and command.step)

    def _pass_over(self, member: Member, epoch: int) -> None:
        """A process that is stopped (Ctrl-Z, a debugger) would hold its turn and never end it: it counts as waiting no
        more until it goes on, which the next heartbeat after that sees."""
        log.info("client %s is stopped: it is passed over until it goes on", member.client)
        self._events.append(ev.LockRefused(member.client, epoch))
        self._events.extend(ev.Unwanted(number) for number in member.processes)

    def _stay_closed(self, command: cmd.Open) -> None:
        """Its devices are somebody else's by now: it had drained and handed them on before it could be reopened."""
        for number in command.processes:
            port = self.ports.get(number)
            if port and not port.page.gate_open and port.page.report.drained_epoch == port.page.epoch:
                self._events.append(ev.Drained(number, command.epoch))

    def _close_strays(self, command: cmd.Grant) -> None:
        """The devices are locked elsewhere. If that is by a process of ours that took over too late, end its turn."""
        for number in command.processes:
            if port := self.ports.get(number):
                port.page.orders.carry = 0
        for member in self.members.values():
            if self.scheduler.clients[member.client].grant is None and member.client not in self._kept_locked:
                for port in member.processes.values():
                    if port.page.gate_open and set(port.devices) & set(command.devices):
                        port.close(port.page.epoch)

    def unlock_unless_granted(self, port: ProcessPort) -> None:
        """The process holds its devices' locks without a grant: they came too late, or for nothing."""
        member = self.member_of(port)
        if member and self.scheduler.clients[member.client].grant is None and port.devices:
            self._free(member, port.devices)

    def _holds_locks(self, member: Member) -> bool:
        """Whether the grant is still backed. If we had hung, its processes may have left us and somebody else runs."""
        grant = self.scheduler.clients[member.client].grant
        held = grant is None or member.locks.acquire(grant.devices, Mode.KEEP)
        if not held:
            log.warning("client %s: somebody else has its devices; its gate stays closed", member.client)
        return held

    def _free(self, member: Member, uuids: tuple[str, ...]) -> None:
        """Unlock, unless a process of the client that we do not reach took a turn by itself meanwhile: then later."""
        if not member.unlock(uuids):
            log.warning("client %s: a process out of reach still runs; its device stays locked", member.client)
            self._kept_locked[member.client] = uuids
            self._loop.call_later(FREE_RETRY, self._free_late)  # it may have been about to end

    def _free_late(self) -> None:
        for client, uuids in list(self._kept_locked.items()):
            member = self.members.get(client)
            if member and self.scheduler.clients[client].grant is None and not member.unlock(uuids):
                continue
            del self._kept_locked[client]

    def write_limits(self, member: Member) -> None:
        client = self.scheduler.clients[member.client]
        memory = sum(self.scheduler.devices[uuid].info.memory for uuid in client.devices)
        idle = self.scheduler.idle_release(client)
        member.write_limits(client, memory, self.scheduler.quantum(client), idle, self.settings.traits)

    # --- clients and processes

    def member(
        self, client: str, token: str, tenant: str, label: str, quota: Quota, request: Request, running: bool
    ) -> Member:
        """The client of that name, made if need be. Raises PermissionError when it is somebody else's, and Refused."""
        member = self.members.get(client)
        if member and (member.token != token or self.scheduler.clients[client].tenant != tenant):
            raise PermissionError(f"client {client!r} exists and the token does not match")
        # It goes to other people's terminals and pages.
        label = "".join(character if character.isprintable() else " " for character in label)
        group = self.settings.tenancy.of(tenant)
        self.feed(ev.ClientRegistered(client, tenant, label, quota, request.gpus, request, group, running))
        if not member:
            member = self.members[client] = Member(client, token)
        return member

    def join(self, member: Member, peer: Peer, hello: messages.Hello, descriptors: list[int]) -> list[int]:
        """A process says hello. Returns the descriptors it is to use instead of its own. Raises BadHello."""
        self._numbers += 1
        number = self._numbers
        port, instead = member.admit(number, peer, hello, descriptors)
        for report in hello.devices:
            if report.uuid not in self.scheduler.devices:
                self._found(DeviceInfo(report.uuid, report.name, report.memory, hello.simulated))
        earlier = port.quota if len(member.processes) == 1 else None
        suspended = port.suspended and not member.met
        member.met = True
        self.ports[number] = port
        running = hello.running and not instead and member.locks.acquire(port.devices, Mode.KEEP)
        if not running and port.page.gate_open:
            port.close(hello.epoch)  # a turn of its own, or under locks that are no longer its client's
        shared = running and member.locks.shared(port.devices)
        self.feed(ev.ProcessJoined(member.client, number, port.devices, running, hello.epoch, port.relays, shared))
        if earlier:  # now that it is known where the client is
            self._adopt_quota(member, earlier)
        if suspended:
            self.set_suspended(member, True)
        self._write_levels(self._loop.time())
        return instead

    def _adopt_quota(self, member: Member, quota: Quota) -> None:
        """What was set with an earlier coordinator holds on, not what the client was started with."""
        try:
            self.feed(ev.QuotaChanged(member.client, quota, member.allocated))
        except GpuShareError as error:
            log.warning("client %s: quota of the page not adopted: %s", member.client, error)

    def set_suspended(self, member: Member, suspended: bool) -> None:
        """Until the opposite is said; its pages tell a later coordinator."""
        self.feed(ev.Suspended(member.client) if suspended else ev.Resumed(member.client))
        self.write_limits(member)

    def hold(self, member: Member, seconds: float) -> float | None:
        """Returns for how long the client keeps its devices now, in seconds; None: it does not. Raises Refused."""
        self.feed(ev.TurnHeld(member.client, seconds))
        return self.scheduler.clients[member.client].held_for(self._loop.time())

    def evict(self, member: Member) -> Held:
        """Its turn ends and its memory leaves, until its next turn. Returns what it had. Raises Conflict."""
        if member.is_plain:
            raise Conflict(
                f"client {member.client} holds its memory in mode plain, which cannot leave the device: "
                "free it in the program, or start it with GPUSHARE_MEMORY_MODE=swap or unified"
            )
        self._feed_memory(member)
        held = member.held
        self.feed(ev.Evicted(member.client))
        return held

    def leave(self, port: ProcessPort) -> None:
        """A process's connection ended."""
        if member := self.member_of(port):
            del self.ports[port.number]
            member.remove(port.number)
            self.feed(ev.ProcessGone(port.number))
            self.maybe_forget(member)

    def member_of(self, port: ProcessPort) -> Member | None:
        return next((member for member in self.members.values() if port.number in member.processes), None)

    def maybe_forget(self, member: Member) -> None:
        """Drop a client that nobody is connected to: at once if it was said to be over, else after a grace."""
        if not member.deserted:
            member.alone_since = None
            return
        member.alone_since = member.alone_since or time.monotonic()
        if member.forgotten or time.monotonic() - member.alone_since > GRACE:
            self.feed(ev.ClientForgotten(member.client))
            self._forgotten += member.measures
            self.progress.forget(member.client)
            del self.members[member.client]
            self._unwatch(member)
            self._deserted_since = time.monotonic()
            self.followers.changed()

    def watch(self, member: Member, pid: int) -> None:
        """When the process has ended, the client is over as soon as its other processes are gone too."""
        if member.program is not None:
            return
        try:
            member.program = os.pidfd_open(pid)
        except OSError as error:  # gone already, in another namespace, or an old kernel: then by the grace
            log.info("process %d of client %s cannot be watched: %s", pid, member.client, error)
            return
        self._loop.add_reader(member.program, self._program_ended, member)

    def _program_ended(self, member: Member) -> None:
        self._unwatch(member)
        if self.members.get(member.client) is member:
            member.forgotten = True
            self.maybe_forget(member)

    def _unwatch(self, member: Member) -> None:
        if member.program is not None:
            self._loop.remove_reader(member.program)
            os.close(member.program)
            member.program = None

    def _found(self, info: DeviceInfo) -> None:
        known = self.settings.capped(info)
        self.feed(ev.DeviceFound(known))

    def _scheduler(self, found: list[DeviceInfo]) -> Scheduler:
        """With the topology of the devices; without it, if it and the tenants' cells cannot both be right."""
        uuids = [info.uuid for info in found]
        try:
            if self.settings.topology_file is not None:
                self.settings.topology = topology.resolved(self.settings.topology_file, uuids)
            elif len(found) > 1 and not any(info.simulated for info in found):
                self.settings.topology = topology.of_distances(uuids, self.nvml.distance)
            return Scheduler(self.settings.core())
        except Refused as error:
            log.error("%s; all devices are taken to be alike", error)
            self.settings.topology = None
            return Scheduler(self.settings.core())

    def set_health(self, uuid: str, failed: str) -> None:
        """What is wrong with a device by now; empty: nothing. Raises Refused for one that is not here."""
        if uuid not in self.scheduler.devices:
            known = ", ".join(self.scheduler.devices) or "none"
            raise Refused(f"device {uuid!r} is not here: allowed are {known}")
        self.feed(ev.DeviceFailed(uuid, failed) if failed else ev.DeviceRecovered(uuid))

    def change_settings(self, settings: LiveSettings) -> None:
        """Raises Refused, having changed nothing."""
        self.feed(ev.SettingsChanged(settings.core()))
        before, self.settings = self.settings.as_json(), settings
        self.kept.add({name: value for name, value in settings.as_json().items() if value != before[name]})
        for member in self.members.values():
            self.write_limits(member)

    # --- levels and snapshots

    def _beat(self) -> None:
        self._pulse = self._loop.call_later(HEARTBEAT, self._beat)
        self.kept.touch()
        for member in list(self.members.values()):
            self.maybe_forget(member)
        for port in [port for port in self.ports.values() if port.page.report.waiting]:
            self._overheard(port)
        self._free_late()
        for uuid, reason in self.health.look():
            log.warning("device %s: %s", uuid, reason or "works again")
            self.set_health(uuid, reason)
        for member in list(self.members.values()):
            self._feed_memory(member)
            if self.scheduler.settings.sharing != EXCLUSIVE and (progress := self.progress.news(member)):
                self.feed(progress)
            if member.comes_ahead:
                self._restore_ahead(member)
        self.utilisation.look(self.scheduler, self.members.values(), self._loop.time())
        self._write_levels(self._loop.time())
        if self.members:
            self.followers.changed()

    def _restore_ahead(self, member: Member) -> None:
        """As much of it as its devices have room for, `device_memory` being all that they have. Nothing beside a client
        of mode `plain`: it cannot ask anybody to leave again.
        """
        devices = [self.scheduler.devices[uuid] for uuid in self.scheduler.clients[member.client].devices]
        running = {grant.client.id for device in devices for grant in device.grants}
        wanted = member.comes_ahead and not any(
            other.is_plain for other in self.members.values() if other.client in running
        )
        rooms = [room(device) for device in devices] if wanted else []
        member.restore_ahead(min(rooms, default=0) * len(rooms))

    def look_at_memory(self, port: ProcessPort) -> None:
        """It said something: what it holds may be another by now."""
        if member := self.member_of(port):
            self._feed_memory(member)

    def make_room(self, port: ProcessPort) -> None:
        """The device is full for this process. Others are told to leave by now; if nobody can, it is told that."""
        for member in list(self.members.values()):
            self._feed_memory(member)
        if port.short and not any(self._leaves(member) for member in self.members.values()):
            port.page.orders.no_room = port.page.report.short_seq

    def _leaves(self, member: Member) -> bool:
        target = self.scheduler.residence.said(member.client)
        return target is not None and target < member.held.resident

    def _feed_memory(self, member: Member) -> None:
        held, short = member.held, sum(port.short for port in member.processes.values())
        client = self.scheduler.clients[member.client]
        if (client.held, client.short) != (held, short):
            self.feed(ev.MemoryHeld(member.client, held.allocated, held.resident, held.pinned, short))

    def _overheard(self, port: ProcessPort) -> None:
        """Threads of the process stand at the gate. If nobody said so, as after a lost message, we know now."""
        process = self.scheduler.processes.get(port.number)
        member = self.member_of(port)
        if process and not process.wants and process.client.grant is None and member and not member.stopped:
            log.info("%s stands at the gate, and nobody has said so", port.peer)
            self.feed(ev.Wanted(port.number))

    def _write_levels(self, now: float) -> None:
        allocated = sum(member.allocated for member in self.members.values())
        capacity = sum(device.info.memory for device in self.scheduler.devices.values())
        simulated = any(device.info.simulated for device in self.scheduler.devices.values())
        # The simulated driver keeps "device" memory on the host too.
        held = [member.held for member in self.members.values()]
        evicted = max(allocated - capacity, sum(one.allocated - one.resident for one in held))
        backing = hostmemory.backing(capacity, allocated, allocated if simulated else evicted)
        waits: dict[str, tuple[int, float]] = {}
        for uuid in self.scheduler.devices:
            for position, (client, wait) in enumerate(expected_waits(self.scheduler, uuid, now).items(), start=1):
                waits[client] = (position, wait)
        for member in self.members.values():
            position, wait = waits.get(member.client, (0, 0.0))
            member.write_levels(int(now * 1e9), backing, position, wait)

    def config(self) -> dict[str, Any]:
        """The settings in force. `simulate` is what was asked for; programs may bring simulated devices without it."""
        devices = self.scheduler.devices.values()
        simulated = bool(devices) and all(device.info.simulated for device in devices)
        return {**self.settings.as_json(), "devices_are_simulated": simulated or self.settings.traits.simulate}

    def status(self) -> dict[str, Any]:
        """The whole snapshot, which nobody is shown as it is: see `Followers.view`."""
        measures = sum((member.measures for member in self.members.values()), self._forgotten)
        about = snapshot.about(self.socket_path, __version__, time.monotonic() - self._began, measures)
        now = self._loop.time()
        return snapshot.take(self.scheduler, self.members, self.nvml, self.utilisation, self.config(), about, now)

    def _owners(self) -> dict[str, str]:
        return {client.id: client.tenant for client in self.scheduler.clients.values()}

    def tell_history(self, after: int, client: str) -> dict[str, Any]:
        """What has happened since entry `after`; see `wire.messages.History`."""
        utilisation = {uuid: self.utilisation.of(uuid).fraction for uuid in self.scheduler.devices}
        return {**self.history.tell(after, client, self._loop.time()), "utilisation": utilisation}
