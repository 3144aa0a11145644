"""The daemon: carries events from its edges to the scheduler and the scheduler's commands back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from .. import __version__
from ..core import events as ev
from ..core.errors import Conflict, Refused
from ..core.model import Client, DeviceInfo, Held
from ..wire import address
from . import devices, health, locks, snapshot, turn_reports
from .audit import Audit
from .driver import Driver
from .followers import Followers, Taking
from .heartbeat import Heartbeat
from .history import History
from .journal import Journal, path_of
from .kept import Kept
from .levels import Levels
from .measures import Measures
from .members import Member
from .neighbours import Neighbours
from .orders import Orders
from .outside import Outside
from .ports import ProcessPort
from .progress import ProgressReports
from .registry import Registry
from .remembered import Remembered
from .replies import refused
from .settings import LiveSettings
from .usage import Usage
from .utilisation import Utilisation

TORN = 0.001  # seconds after which a page that was being written is read again
AGENTS_FIRST = 0.003  # processes close their gates at the deadline by themselves; this late we see that they do

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
        self.members: dict[str, Member] = {}  # by client
        self.ports: dict[int, ProcessPort] = {}  # by the numbers of processes
        self.registry = Registry(self)
        self.followers = Followers(self.status, self._owners)
        self._loop = asyncio.get_running_loop()
        self._events: deque[ev.Event] = deque()
        self.levels = Levels(self.scheduler, self.members, self.feed, self._loop.time)
        self.orders = Orders(
            self.members,
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
        self._timer: asyncio.TimerHandle | None = None
        self.progress = ProgressReports()
        self.utilisation = Utilisation(self.nvml)
        self.outside = Outside(self.nvml)
        self.history = History(self._loop.time())
        self._began = self._loop.time()
        for info in found:
            try:
                locks.make_file(info.uuid)  # before anybody makes one that is not for everybody
            except OSError as error:
                self.problems.append(f"not everybody can lock device {info.uuid}: {error}")
                log.warning("%s", self.problems[-1])
            self.device_found(info)
        if self.scheduler.placing.placement.unmet:
            log.error("%s: what they are guaranteed does not hold", self.scheduler.placing.placement.unmet)
        self._heartbeat = Heartbeat(self)

    def close(self) -> None:
        """Stop the timers and let go of every page and lock; clients run on and look for another coordinator."""
        self._heartbeat.stop()
        self.registry.programs.close()
        if self._timer:
            self._timer.cancel()
        self.followers.close()
        self.remembered.keep(self.members.values(), self.scheduler.clients, self._loop.time())
        self.usage.look(self.members.values(), self._loop.time())
        self.journal.close()
        self.neighbours.close()
        self.driver.close()
        for member in self.members.values():
            member.abandon()

    @property
    def now(self) -> float:
        """Seconds, on the clock of events."""
        return self._loop.time()

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
        self._look(concerned)
        self.usage.changed(concerned)
        self._arm()
        self.neighbours.tell()
        self.followers.changed(concerned)

    def look_at_page(self, port: ProcessPort, again: bool = True) -> None:
        """Handle what the page of a process says, after its doorbell and once a second."""
        process, member = self.scheduler.processes.get(port.number), self.registry.member_of(port)
        if process is None or member is None:
            return
        news = turn_reports.news(member, port, process, self.now)
        if news is None and again:
            self._loop.call_later(TORN, self.look_at_page, port, False)
        for event in news or ():
            if isinstance(event, ev.Began):
                self._look_at_those_before(process.client)
            elif isinstance(event, ev.Ended):
                self._look_at_those_that_join(process.client)
            self.feed(event)
        if port.became_short():
            self.levels.make_room([port])
            self.levels.look(member)

    def _look_at_those_before(self, client: Client) -> None:
        """A client has entered a turn, so the clients that had its devices have left theirs: read that first."""
        self._look_at_pages(
            grant.client for device in client.books for grant in device.grants if grant.client is not client
        )

    def _look_at_those_that_join(self, client: Client) -> None:
        """A client has left a turn that another may have joined: read that first, or the joiner loses its permit."""
        following = [device.next for device in client.books if device.next and device.next is not client]
        self._look_at_pages(joiner for joiner in following if joiner.next and joiner.next.joins)

    def _look_at_pages(self, clients: Iterable[Client]) -> None:
        for identity in [client.id for client in clients]:
            for port in list(self.members[identity].processes.values()):
                self.look_at_page(port)

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

    def remember(self, member: Member) -> None:
        """Its quota or suspension has just been changed, and is to outlive this process."""
        self.remembered.keep_soon(member, self.scheduler.clients[member.client], self._loop.time())

    def device_found(self, info: DeviceInfo) -> None:
        """It counts with as much memory as the settings leave it."""
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

    def status(self, touched: set[str]) -> Taking:
        """Make the whole snapshot, which is shown to no user as it is, in slices; see `snapshot.take`."""
        found, clients, measures = yield from snapshot.take(
            self.scheduler, self.members, self.nvml, self.utilisation, self.outside, touched, self._loop.time
        )
        together = Measures.together([self.registry.forgotten, *measures])
        about = {
            **snapshot.about(self.socket_path, __version__, self._loop.time() - self._began, together),
            **self.usage.about(),
            "overruns": self.orders.overruns,
            "refused": dict(refused),
            "problems": [*self.problems, *self.journal.problems],
        }
        return {"devices": found, "clients": clients, "config": self.config(), "coordinator": about}

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
