"""Turns: who is granted the devices, and whose turn is to end, looked at whenever something may have changed."""

from __future__ import annotations

from collections.abc import Iterable

from .allowance import Allowance
from .beginning import Beginning
from .commands import Command, Interrupt, Orders
from .deadlines import Deadlines
from .grants import GRANT, LINE, LOCK
from .leavers import Leavers
from .line import Line
from .model import Client, Device, DeviceInfo, Grant, Process
from .overruns import is_to_be_interrupted
from .policies import policy_of
from .settings import JOIN, Settings
from .sharing import Sharing
from .together import Together


class Turns(Beginning):
    """Decides, over the books of grants. What an event may have changed is looked at device by device."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        super().__init__(settings, devices, out)
        self.sharing = Sharing(lambda client: self.policy.share(client), self.quantum)
        self._together = Together(self, self.sharing)
        self._deadlines = Deadlines(self)
        self._claims: dict[str, Client] = {}  # by device that another could have, or join: it is kept for this client

    def configure(self, settings: Settings, now: float) -> None:
        """Raises Refused, having changed nothing."""
        settings = self.tuner.applied(settings)
        policy = policy_of(settings)
        policy.inherit(self.policy)
        self.policy, self.settings = policy, settings
        clients = {client.id: client for device in self.devices.values() for client in device.clients.values()}
        for device in self.devices.values():
            device.line = Line(policy, settings.max_wait)
        for client in clients.values():
            self.read_quota(client, now)

    def add_device(self, info: DeviceInfo) -> None:
        device = self.devices[info.uuid] = Device(info, Line(self.policy, self.settings.max_wait))
        device.leavers = Leavers(device)

    def read_quota(self, client: Client, now: float) -> None:
        """The client's quota, or the policy that reads it, is another."""
        limit = self.policy.limit(client)
        if limit >= 1.0:
            client.allowance = None
        elif client.allowance is None or client.allowance.limit != limit:
            pace = (self.policy.quantum(client), client.switching.cost)
            if client.grant and client.allowance:
                client.allowance.ran(now - client.grant.began, now)
            client.allowance = Allowance(limit, *pace, now, client.allowance)
        self.count(client)
        self.line_up_again(client, now)
        self.touch(client)

    # --- time

    def next_deadline(self) -> float | None:
        first = self.agenda.first()
        return first[0] if first else None

    def ends_turn(self, due: float) -> bool:
        """Whether `due`, the next deadline, is that of a turn, as announced to its processes."""
        first = self.agenda.first()
        if first is None or first[1][0] != GRANT:
            return False
        grant = self.grants[first[1][1]]
        return grant.announced == (True, due) and not grant.draining

    def quantum(self, client: Client) -> float:
        return self.policy.quantum(client)

    def idle_release(self, client: Client) -> float:
        return self.policy.idle_release(client)

    def advance(self, now: float) -> Iterable[str]:
        """Do what is due at `now`, and what has become possible on devices that were touched; returns these."""
        for kind, name in self.agenda.take_due(now):
            if kind == GRANT:
                self.touch(self.grants[name].client)
                self._meet_deadlines(self.grants[name], now)
            else:
                self.touched[name] = None
        seen: dict[str, None] = {}
        while self.touched or self._claims_passed_on(now):
            uuid = next(iter(self.touched))
            del self.touched[uuid]
            seen[uuid] = None
            self._look_at(self.devices[uuid], now)
        while self.promised:
            self.unname(self.promised.popitem()[1])
        for uuid in seen:
            device = self.devices[uuid]
            self._out += self.sharing.settle(device, now)
            for grant in list(device.grants):
                self._settle(grant, now)
            self.agenda.set((LOCK, uuid), device.refused_until if device.line else None)
            self.agenda.set((LINE, uuid), device.line.next_ready())
        seen.update(self.touched)  # the settling of one may have begun the closing of another
        self.touched.clear()
        for uuid in seen:
            for grant in self.devices[uuid].grants:
                self.agenda.set((GRANT, grant.client.id), self._deadlines.due(grant))
        return seen

    def _claims_passed_on(self, now: float) -> bool:
        """Touch each device that is kept for a client which is not the next one there any more, because another client
        has waited for longer than `max_wait`."""
        for uuid, head in self._claims.items():
            if self.devices[uuid].line.head(now) is not head:
                self.touched[uuid] = None
        return bool(self.touched)

    def _look_at(self, device: Device, now: float) -> None:
        if device.refused_until is not None and device.refused_until <= now:
            device.refused_until, device.yields = None, False
        device.line.settle(now)
        for grant in list(device.grants):
            if self.closed_for_nobody(grant, now):
                self.withdraw_closing(grant)
        for grant in self._together.leaving(device, now):
            self._dismiss(grant, now)
        # A client that cannot start yet claims its devices, so that gangs never starve.
        while (head := device.line.head(now)) and self.can_start(head):
            self.begin(head, now)
        if head and self._together.is_free(device) and self._cannot_start_soon(head):
            self._lend(device, head, now)
        if head and self._together.can_be_joined(device):
            self._claims[device.info.uuid] = head
        else:
            self._claims.pop(device.info.uuid, None)

    def _cannot_start_soon(self, head: Client) -> bool:
        """Whether a device that it needs is taken for a time without bound: by a better class, a lock, an overrun."""
        return any(
            device.refused_until is not None
            or self._together.is_kept_out(device, head)
            or any(grant.client.rank < head.rank for grant in device.grants)
            or ((first := device.line.head(self.now)) is not None and first.rank < head.rank)
            for device in head.books
        )

    def _lend(self, device: Device, head: Client, now: float) -> None:
        """Meanwhile the next one that needs only this device has a turn there, as long as any."""
        if device.refused_until is not None:
            return
        for client in device.line.ordered(now):
            if client is head or client.books != (device,) or client.grant or client.ready_at > now:
                continue
            suits = client.rank == head.rank and self._together.packs(device, client)
            if not device.grants or (suits and device.wanted_since is None):
                self.begin(client, now)
                return

    def _meet_deadlines(self, grant: Grant, now: float) -> None:
        due = self._deadlines.due(grant)
        while due is not None and due <= now and grant.client.grant is grant and grant.draining:
            if grant.reopen_until is not None:
                self.close(grant, now)
            else:
                self.retry_closing(grant, now)
            due = self._deadlines.due(grant)
        if due is not None and due <= now and not grant.draining:
            self.begin_closing(grant, now)

    def _settle(self, grant: Grant, now: float) -> None:
        """Tell a grant's processes what has changed for them."""
        if not grant.draining:
            deadline = self._deadlines.deadline(grant)
            levels = (self.contended(grant), deadline)
            if levels != grant.announced:
                grant.announced = levels
                self._out.append(Orders(grant.client.id, *levels))
            due = self._deadlines.ends(grant, deadline)
            if due is not None and due <= now:  # somebody came to wait after its quantum was over
                self.begin_closing(grant, now)
        elif is_to_be_interrupted(grant, self.settings, now) and self.contended(grant):
            grant.interrupted = True
            self._out.append(Interrupt(grant.client.id, grant.epoch, grant.closing_for(now)))
        self.name_next(grant, self._successor(grant, now))

    # --- who runs

    def can_start(self, client: Client) -> bool:
        """It is the next one on each of its devices, and there is room for it."""
        return bool(client.books) and all(self._has_room(device, client) for device in client.books)

    def _has_room(self, device: Device, client: Client) -> bool:
        if client.grant and client.grant in device.grants:
            return True
        if device.refused_until is not None or device.line.head(self.now) is not client:
            return False
        if not device.grants:
            return True
        # Nobody joins while others on this host wait: what runs together would never end. An overrun doesn't anyway.
        free = device.wanted_since is None or any(grant.overrun for grant in device.grants)
        return free and self._together.packs(device, client)

    def _dismiss(self, grant: Grant, now: float) -> None:
        grant.parting = True
        self.begin_closing(grant, now)

    def _successor(self, grant: Grant, now: float) -> Process | None:
        """Who can take over by the lock itself: that takes one process with one device on either side."""
        if len(grant.devices) != 1 or not self.contended(grant) or self.settings.overrun == JOIN:
            return None  # who waits for a lock, to have it alone, could not join an overrun
        (uuid,) = grant.devices
        device = self.devices[uuid]
        givers = list(grant.client.processes.values())
        if len(givers) != 1 or not givers[0].relays or len(device.grants) != 1 or device.refused_until is not None:
            return None
        if device.wanted_since is not None:
            return None  # it is the turn of others on this host
        client = device.line.head(now)
        if client is None or client is grant.client:
            return None
        processes = list(client.processes.values())
        if client.devices != grant.devices or len(processes) != 1 or self._together.suits(device, client):
            return None  # who may run beside it needs the coordinator: a lock that is taken over is an exclusive one
        return processes[0] if processes[0].relays else None
