"""The daemon: carries events from its edges to the scheduler and the scheduler's commands back."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .. import __version__
from ..core import events as ev
from ..core.errors import Conflict, GpuShareError, Refused
from ..core.model import DeviceInfo, Held
from ..core.placement import Request
from ..core.quota import Quota
from ..wire import address, messages
from . import devices, health, locks, snapshot
from .audit import Audit
from .driver import Driver
from .followers import Followers
from .hearsay import Hearsay
from .heartbeat import Heartbeat
from .history import History
from .journal import Journal, path_of
from .kept import Kept
from .levels import Levels
from .limits import TooMany
from .locks import Mode
from .measures import Measures
from .members import Member
from .neighbours import Neighbours
from .orders import Orders
from .outside import Outside
from .peer import Peer
from .ports import MAX_BYTES, ProcessPort
from .printable import printable
from .programs import Programs
from .progress import ProgressReports
from .remembered import Remembered, quota_of
from .replies import refused
from .settings import LiveSettings
from .usage import Usage
from .utilisation import Utilisation

AGENTS_FIRST = 0.003  # processes close their gates at the deadline by themselves; this late we see that they do
GRACE = 60.0  # how long a client without any connection is remembered

log = logging.getLogger(__name__)


class Daemon:
    """All state of a running coordinator. Everything happens on one event loop."""

    def __init__(self, settings: LiveSettings, socket_path: str, state: Path | None = None) -> None:
        """`state`: the directory for what is to outlive it; None: this user's."""
        state = state or address.state_directory()
        self.audit = Audit(state)
        self.kept = Kept(socket_path)
        self.settings = self.kept.restore(settings)
        self.socket_path = socket_path
        self.nvml = devices.Nvml()
        found = devices.simulated() if settings.traits.simulate else self.nvml.devices()
        self.nvml.look()
        looks = health.Health(*((None, {}) if settings.traits.simulate else self.nvml.handles))
        self.driver = Driver(self.nvml, looks)
        self.scheduler = self.settings.scheduler(found, self.nvml.distance)
        self.members: dict[str, Member] = {}
        self.ports: dict[int, ProcessPort] = {}
        self.followers = Followers(self.status, self._owners)
        self.programs = Programs(self._program_ended)
        self._members_of: dict[int, Member] = {}  # by port
        self._loop = asyncio.get_running_loop()
        self._events: deque[ev.Event] = deque()
        self.levels = Levels(self.scheduler, self.members, self.feed)
        self.orders = Orders(
            self.scheduler,
            self.members,
            self.ports,
            self._events.append,
            self.write_limits,
            self.levels.bring_back,
            self.audit,
        )
        self.neighbours = Neighbours(self.scheduler.devices, self.feed)
        self.journal = Journal(path_of(socket_path, state), self._loop.call_soon_threadsafe)
        self.remembered = Remembered(self.journal, self._loop.time())
        self.usage = Usage(self.scheduler, self.journal, settings.traits.usage_kept, self._loop.time())
        self.problems: list[str] = []  # for people: what does not work beside sharing
        self.hearsay = Hearsay()
        self._numbers = 0
        self._timer: asyncio.TimerHandle | None = None
        self._forgotten = Measures()
        self.progress = ProgressReports()
        self.utilisation = Utilisation(self.nvml)
        self.outside = Outside(self.nvml)
        self.history = History(self._loop.time())
        self._began = self._loop.time()
        self._deserted_since = self._began
        for info in found:
            try:
                locks.make_file(info.uuid)  # before anybody makes one that is not for everybody
            except OSError as error:
                self.problems.append(f"not everybody can lock device {info.uuid}: {error}")
                log.warning("%s", self.problems[-1])
            self._found(info)
        if self.scheduler.placing.placement.unmet:
            log.error("%s: what they are guaranteed does not hold", self.scheduler.placing.placement.unmet)
        self._heartbeat = Heartbeat(self)

    def close(self) -> None:
        """Stop the timers and let go of every page and lock; clients run on and look for another coordinator."""
        self._heartbeat.stop()
        self.programs.close()
        if self._timer:
            self._timer.cancel()
        self.followers.close()
        self.remembered.keep(self.members.values(), self.scheduler.clients, self._loop.time())
        self.usage.look(self.members.values(), self._loop.time())
        self.journal.close()
        self.orders.close()
        self.neighbours.close()
        self.driver.close()
        for member in self.members.values():
            member.abandon()

    @property
    def now(self) -> float:
        """Seconds, on the clock of events."""
        return self._loop.time()

    @property
    def deserted_for(self) -> float:
        """Seconds since the last client left; 0 while there is one."""
        return self._loop.time() - self._deserted_since if not self.members else 0.0

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
                self.orders.carry_out(command)
            if not self._events:
                break
            event = self._events.popleft()
            concerned |= self._whose(event)
            decided = self.scheduler.handle(event, self._loop.time())
        self._look(concerned)  # of what a refused lock has undone at once, nobody hears
        self.usage.changed(concerned)
        self._arm()
        self.neighbours.tell()
        self.followers.changed()

    def _look(self, concerned: Iterable[str]) -> None:
        now = self._loop.time()
        for client in self.history.holders.union(concerned):
            self.history.look(client, self.scheduler.clients.get(client), now)

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
        most = self.settings.traits.max_clients
        if member is None and most and sum(one.tenant == tenant for one in self.scheduler.clients.values()) >= most:
            raise TooMany(f"this user has {most} clients already, the most anybody may have: end one of them first")
        group = self.settings.tenancy.of(tenant)
        kept = None if member else self.remembered.claim(client, token, tenant)
        self.feed(ev.ClientRegistered(client, tenant, printable(label), quota, request.gpus, request, group, running))
        if not member:
            member = self.members[client] = Member(client, token)
            if kept:
                self._adopt(member, quota_of(kept), kept.suspended)
            known = self.scheduler.clients[client]
            member.began = (known.quota, known.suspended_by_person)
        return member

    def join(self, member: Member, peer: Peer, hello: messages.Hello, descriptors: list[int]) -> list[int]:
        """A process says hello. Returns the descriptors it is to use instead of its own.

        Raises BadHello and Refused, with nothing left of the process.
        """
        most = self.settings.traits.max_processes
        try:
            if most and sum(port.peer.user == peer.user for port in self.ports.values()) >= most:
                raise TooMany(f"this user has {most} processes on the GPU already, the most anybody may have")
            self.hearsay.check(peer, hello, self.scheduler.devices)
        except TooMany:
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        self._numbers += 1
        port, instead = member.admit(self._numbers, peer, hello, descriptors)
        self.ports[port.number] = port
        self._members_of[port.number] = member
        try:
            self._take_in(member, port, hello, own_locks=not instead)
        except BaseException:
            self.leave(port)  # its session doesn't know of it yet, so nobody else would
            raise
        return instead

    def _take_in(self, member: Member, port: ProcessPort, hello: messages.Hello, own_locks: bool) -> None:
        for report in hello.devices:
            if report.uuid not in self.scheduler.devices:
                name, memory = printable(report.name), min(report.memory, MAX_BYTES)
                hearsay = self.hearsay.is_new(port.peer)
                if hearsay:
                    log.warning("%s has device %s, which nobody else knows: no client is sent there", port.peer, name)
                self._found(DeviceInfo(report.uuid, name, memory, hello.simulated, hearsay))
        client = self.scheduler.clients[member.client]
        # Its page is newer than the journal, but not than what was said since the client is back.
        tells = not member.met and (client.quota, client.suspended_by_person) == member.began
        earlier, suspended = port.quota if tells else None, port.suspended
        idle = port.suspended_by_policy and not member.met
        member.met = True
        running = hello.running and own_locks and member.locks.acquire(port.devices, Mode.KEEP)
        if not running and port.page.gate_open:
            port.close(hello.epoch)  # a turn of its own, or under locks that are no longer its client's
        shared = running and member.locks.shared(port.devices)
        self.feed(
            ev.ProcessJoined(
                member.client, port.number, port.devices, running, hello.epoch, port.relays, shared, port.drained_epoch
            )
        )
        if earlier:  # now that it is known where the client is
            self._adopt(member, earlier, suspended)
        if idle:
            self.feed(ev.Suspended(member.client, by_policy=True))
        self.levels.write(self._loop.time())

    def _adopt(self, member: Member, quota: Quota | None, suspended: bool) -> None:
        """What was said to an earlier coordinator holds on, not what the client was started with."""
        if quota:
            try:
                self.feed(ev.QuotaChanged(member.client, quota, member.allocated))
            except GpuShareError as error:
                log.warning("client %s: quota of an earlier coordinator not adopted: %s", member.client, error)
        if suspended != self.scheduler.clients[member.client].suspended_by_person:
            self.feed(ev.Suspended(member.client) if suspended else ev.Resumed(member.client))

    def hold(self, member: Member, seconds: float) -> float | None:
        """Returns for how long the client keeps its devices now, in seconds; None: it does not. Raises Refused."""
        self.feed(ev.TurnHeld(member.client, seconds))
        return self.scheduler.clients[member.client].held_for(self._loop.time())

    def release(self, member: Member) -> tuple[bool, bool]:
        """Give up the client's turn and its hold. Returns whether it had a turn, and a hold."""
        client = self.scheduler.clients[member.client]
        had = client.grant is not None, client.held_for(self._loop.time()) is not None
        self.feed(ev.TurnReleased(member.client))
        return had

    def evict(self, member: Member) -> Held:
        """Its turn ends and its memory leaves, until its next turn. Returns what it had. Raises Conflict."""
        if member.is_plain:
            raise Conflict(
                f"client {member.client} holds its memory in mode plain, which cannot leave the device: "
                "free it in the program, or start it with GPUSHARE_MEMORY_MODE=swap or unified"
            )
        self.levels.look(member)
        held = member.held
        self.feed(ev.Evicted(member.client))
        return held

    def leave(self, port: ProcessPort) -> None:
        """A process's connection ended."""
        if member := self.member_of(port):
            del self.ports[port.number], self._members_of[port.number]
            member.remove(port.number)
            if port.number in self.scheduler.processes:
                self.feed(ev.ProcessGone(port.number))
            self.maybe_forget(member)

    def member_of(self, port: ProcessPort) -> Member | None:
        return self._members_of.get(port.number)

    def maybe_forget(self, member: Member) -> None:
        """Drop a client that nobody is connected to: at once if it was said to be over, else after a grace."""
        if not member.deserted:
            member.alone_since = None
            return
        member.alone_since = member.alone_since or self._loop.time()
        if member.forgotten or self._loop.time() - member.alone_since > GRACE:
            self.usage.leave(member, self._loop.time())
            self.feed(ev.ClientForgotten(member.client))
            self._forgotten = Measures.together([self._forgotten, member.measures])
            self.progress.forget(member.client)
            del self.members[member.client]
            self.programs.forget(member)
            self._deserted_since = self._loop.time()
            self.followers.changed()

    def _program_ended(self, member: Member) -> None:
        """The client is over as soon as its other processes are gone too."""
        if self.members.get(member.client) is member:
            member.forgotten = True
            self.maybe_forget(member)

    def remember(self, member: Member) -> None:
        """Its quota or suspension has just been changed, and is to outlive this process."""
        self.remembered.keep_soon(member, self.scheduler.clients[member.client], self._loop.time())

    def _found(self, info: DeviceInfo) -> None:
        known = self.settings.capped(info)
        self.feed(ev.DeviceFound(known))

    def set_health(self, uuid: str, failed: str) -> str:
        """What is wrong with a device by now; empty: nothing. Returns what was. Raises Refused for one that is not
        here."""
        if uuid not in self.scheduler.devices:
            known = ", ".join(self.scheduler.devices) or "none"
            raise Refused(f"device {uuid!r} is not here: allowed are {known}")
        before = self.scheduler.placing.placement.books[uuid].failed
        self.feed(ev.DeviceFailed(uuid, failed) if failed else ev.DeviceRecovered(uuid))
        return before

    def change_settings(self, settings: LiveSettings) -> None:
        """Raises Refused, having changed nothing."""
        groups = {client.id: settings.tenancy.of(client.tenant) for client in self.scheduler.clients.values()}
        self.feed(ev.SettingsChanged(settings.core(), groups))
        before, self.settings = self.settings.as_json(), settings
        self.kept.add({name: value for name, value in settings.as_json().items() if value != before[name]})
        for member in self.members.values():
            self.write_limits(member)

    # --- snapshots

    def config(self) -> dict[str, Any]:
        """The settings in force. `simulate` is what was asked for; programs may bring simulated devices without it."""
        devices = self.scheduler.devices.values()
        simulated = bool(devices) and all(device.info.simulated for device in devices)
        return {**self.settings.as_json(), "devices_are_simulated": simulated or self.settings.traits.simulate}

    def status(self) -> dict[str, Any]:
        """The whole snapshot, which nobody is shown as it is: see `Followers.view`."""
        measures = {member.client: member.measures for member in self.members.values()}
        together = Measures.together([self._forgotten, *measures.values()])
        about = {
            **snapshot.about(self.socket_path, __version__, self._loop.time() - self._began, together),
            **self.usage.about(),
            "overruns": self.orders.overruns,
            "refused": dict(refused),
            "problems": [*self.problems, *self.journal.problems],
        }
        now = self._loop.time()
        return snapshot.take(
            self.scheduler,
            self.members,
            measures,
            self.nvml,
            self.utilisation,
            self.outside,
            self.config(),
            about,
            now,
        )

    def metrics(self) -> dict[str, Any]:
        """The snapshot with what was used up to now, by everybody."""
        self.usage.look(self.members.values(), self._loop.time())
        return self.status()

    def _owners(self) -> dict[str, str]:
        return {client.id: client.tenant for client in self.scheduler.clients.values()}

    def tell_history(self, after: int, client: str) -> dict[str, Any]:
        """What has happened since entry `after`; see `wire.messages.History`."""
        utilisation = {uuid: self.utilisation.of(uuid).fraction for uuid in self.scheduler.devices}
        self._look(())
        return {**self.history.tell(after, client, self._loop.time()), "utilisation": utilisation}

    def tell_usage(self, since: float, user: str, told: Callable[[dict[str, Any]], None]) -> None:
        """Up to now, see `Usage.tell`."""
        self.usage.look(self.members.values(), self._loop.time())
        self.usage.tell(since, user, told)
