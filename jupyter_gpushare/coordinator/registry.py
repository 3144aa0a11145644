"""Clients and processes: who comes, who is there, who goes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from ..core import events as ev
from ..core.errors import GpuShareError
from ..core.model import DeviceInfo
from ..core.placement import Request
from ..core.quota import Quota
from ..wire import messages
from . import turn_reports
from .hearsay import Hearsay
from .limits import TooMany
from .measures import Measures
from .members import Member
from .peer import Peer
from .ports import MAX_BYTES, ProcessPort
from .printable import printable
from .programs import Programs
from .remembered import quota_of

if TYPE_CHECKING:
    from .daemon import Daemon

GRACE = 60.0  # how long a client without any connection is remembered

log = logging.getLogger(__name__)


class Registry:
    """Keeps the daemon's `members` and `ports`, and tells the scheduler of both."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._scheduler, self._feed = daemon.scheduler, daemon.feed
        self._loop = asyncio.get_running_loop()
        self._members_of: dict[int, Member] = {}  # by port
        self._hearsay = Hearsay()
        self._numbers = 0
        self._deserted_since = self._loop.time()
        self._members, self._ports = daemon.members, daemon.ports
        self.programs = Programs(self._program_ended)
        self.forgotten = Measures()  # of clients that are gone

    @property
    def deserted_for(self) -> float:
        """Seconds since the last client left; 0 while there is one."""
        return self._loop.time() - self._deserted_since if not self._members else 0.0

    def member(
        self, client: str, token: str, tenant: str, label: str, quota: Quota, request: Request, running: bool
    ) -> Member:
        """The client of that name, made if need be. Raises PermissionError when it is somebody else's, and Refused."""
        member = self._members.get(client)
        if member and (member.token != token or self._scheduler.clients[client].tenant != tenant):
            raise PermissionError(f"client {client!r} exists and the token does not match")
        most = self._daemon.settings.traits.max_clients
        if member is None and most and sum(one.tenant == tenant for one in self._scheduler.clients.values()) >= most:
            raise TooMany(f"this user has {most} clients already, the most anybody may have: end one of them first")
        group = self._daemon.settings.tenancy.of(tenant)
        self._daemon.remembered.check(client, tenant)
        self._feed(ev.ClientRegistered(client, tenant, printable(label), quota, request.gpus, request, group, running))
        if not member:
            member = self._members[client] = Member(client, token)
            if kept := self._daemon.remembered.claim(client, token):
                self._adopt(member, quota_of(kept), kept.suspended)
            known = self._scheduler.clients[client]
            member.began = (known.quota, known.suspended_by_person)
        return member

    def join(self, member: Member, peer: Peer, hello: messages.Hello) -> tuple[ProcessPort, int | None]:
        """A process says hello. Returns its port, and the client page that it is to use instead of its own, if any.

        Raises BadHello and Refused, with nothing left of the process.
        """
        most = self._daemon.settings.traits.max_processes
        if most and sum(port.peer.user == peer.user for port in self._ports.values()) >= most:
            raise TooMany(f"this user has {most} processes on the GPU already, the most anybody may have")
        self._hearsay.check(peer, hello, self._scheduler.devices)
        self._numbers += 1
        port, instead = member.admit(self._numbers, peer, hello, peer.take_descriptors())
        self._ports[port.number] = port
        self._members_of[port.number] = member
        try:
            self._take_in(member, port, hello)
        except BaseException:
            self.leave(port)  # its session doesn't know of it yet, so nobody else would
            raise
        return port, instead

    def _take_in(self, member: Member, port: ProcessPort, hello: messages.Hello) -> None:
        for report in hello.devices:
            if report.uuid not in self._scheduler.devices:
                name, memory = printable(report.name), min(report.memory, MAX_BYTES)
                hearsay = self._hearsay.is_new(port.peer)
                if hearsay:
                    log.warning("%s has device %s, which nobody else knows: no client is sent there", port.peer, name)
                self._daemon.device_found(DeviceInfo(report.uuid, name, memory, hello.simulated, hearsay))
        client = self._scheduler.clients[member.client]
        # Its page is newer than the journal, but not than what was said since the client is back.
        tells = not member.met and (client.quota, client.suspended_by_person) == member.began
        earlier, suspended = port.quota if tells else None, port.suspended
        idle = port.suspended_by_policy and not member.met
        member.met = True
        turn = turn_reports.brought(port, self._loop.time())
        self._feed(ev.ProcessJoined(member.client, port.number, port.devices, turn))
        member.write_permit(port)
        if earlier:  # now that it is known where the client is
            self._adopt(member, earlier, suspended)
        if idle:
            self._feed(ev.Suspended(member.client, by_policy=True))
        self._daemon.levels.measure(self._loop.time())
        self._daemon.levels.write(member)

    def _adopt(self, member: Member, quota: Quota | None, suspended: bool) -> None:
        """What was said to an earlier coordinator holds on, not what the client was started with."""
        if quota:
            try:
                self._feed(ev.QuotaChanged(member.client, quota, member.allocated))
            except GpuShareError as error:
                log.warning("client %s: quota of an earlier coordinator not adopted: %s", member.client, error)
        if suspended != self._scheduler.clients[member.client].suspended_by_person:
            self._feed(ev.Suspended(member.client) if suspended else ev.Resumed(member.client))

    def leave(self, port: ProcessPort) -> None:
        """A process's connection ended."""
        if member := self.member_of(port):
            del self._ports[port.number], self._members_of[port.number]
            member.remove(port.number)
            if port.number in self._scheduler.processes:
                self._feed(ev.ProcessGone(port.number))
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
            self._daemon.usage.leave(member, self._loop.time())
            self._feed(ev.ClientForgotten(member.client))
            self.forgotten = Measures.together([self.forgotten, member.measures])
            self._daemon.progress.forget(member.client)
            del self._members[member.client]
            self.programs.forget(member)
            self._deserted_since = self._loop.time()
            self._daemon.followers.changed()

    def _program_ended(self, member: Member) -> None:
        """The client is over as soon as its other processes are gone too."""
        if self._members.get(member.client) is member:
            member.forgotten = True
            self.maybe_forget(member)
