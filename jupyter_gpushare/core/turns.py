"""Turns: which client is next, and whose turn is to end, looked at whenever something may have changed."""

from __future__ import annotations

from collections.abc import Iterable

from .allowance import Allowance
from .beginning import Beginning
from .commands import Command, Interrupt, Permit
from .deadlines import Deadlines
from .grants import FIRST_TURN, GAP, GRANT, LINE, NEXT
from .leavers import Leavers
from .line import Line
from .model import Client, Device, DeviceInfo, Grant
from .overruns import is_to_be_interrupted
from .policies import policy_of
from .settings import Settings
from .sharing import Sharing
from .together import Together


class Turns(Beginning):
    """Decides, over the books of grants. What an event may have changed is looked at device by device."""

    def __init__(
        self, settings: Settings, devices: dict[str, Device], out: list[Command], first_turn: int = FIRST_TURN
    ) -> None:
        super().__init__(settings, devices, out, first_turn)
        self.sharing = Sharing(lambda client: self.policy.share(client), self.quantum)
        self._together = Together(self, self.sharing)
        self._deadlines = Deadlines(self)
        self._heads: dict[str, Client] = {}  # by device: the first in its line, when it was looked at

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
        """Whether `due`, the next deadline, is that of a turn which its processes end by themselves."""
        first = self.agenda.first()
        if first is None or first[1][0] != GRANT:
            return False
        grant = self.grants[first[1][1]]
        permit = grant.client.permit
        return permit is not None and permit.may and permit.relieved and permit.deadline == due and not grant.draining

    def quantum(self, client: Client) -> float:
        return self.policy.quantum(client)

    def idle_release(self, client: Client) -> float:
        return self.policy.idle_release(client)

    def advance(self, now: float) -> Iterable[str]:
        """Do what is due at `now`, and what has become possible on devices that were touched; returns these."""
        for kind, name in self.agenda.take_due(now):
            if kind == GRANT:
                self._meet_deadline(self.grants[name], now)
            elif kind == NEXT:
                self.probe(self.waiting[name])
            else:
                self.touched[name] = None
        seen: dict[str, None] = {}
        while self.touched or self._heads_passed_over(now):
            uuid = next(iter(self.touched))
            del self.touched[uuid]
            seen[uuid] = None
            self._look_at(self.devices[uuid], now)
        for uuid in seen:
            device = self.devices[uuid]
            self._out += self.sharing.settle(device, now)
            for grant in list(device.grants):
                self._settle(grant, now)
            if device.next:
                self.arm_probe(device.next)
            self.agenda.set((GAP, uuid), device.left_until)
            self.agenda.set((LINE, uuid), device.line.next_ready())
        seen.update(self.touched)  # the settling of one may have begun the closing of another
        self.touched.clear()
        for uuid in seen:
            for grant in self.devices[uuid].grants:
                self.agenda.set((GRANT, grant.client.id), self._deadlines.due(grant))
        self._out += self.permits.settle(self._wanted_permit)
        return seen

    def _heads_passed_over(self, now: float) -> bool:
        """Touch each device whose first client is not the first one there any more, because another client has waited
        for longer than `max_wait`."""
        for uuid, head in self._heads.items():
            if self.devices[uuid].line.head(now) is not head:
                self.touched[uuid] = None
        return bool(self.touched)

    def _look_at(self, device: Device, now: float) -> None:
        if device.left_until is not None and device.left_until <= now:
            device.left_until = None
        device.line.settle(now)
        for grant in list(device.grants):
            if self.closed_for_nobody(grant, now):
                self.withdraw_closing(grant)
            self.look_for_overrun(grant, now)
        for grant in self._together.leaving(device, now):
            self._dismiss(grant, now)
        self.adopt_unpermitted(device, now)
        head = device.line.head(now)
        found = self._turn_for(head) if head else None
        if head and found:
            self.permit(head, found[0], now, joins=found[1])
        elif lent := self._borrower(device, head, now):
            self.permit(lent[0], lent[1], now, joins=lent[2])
        elif device.next:
            self.retract(device.next)
        # A client that cannot start yet claims its devices, so that gangs never starve.
        if head:
            self._heads[device.info.uuid] = head
        else:
            self._heads.pop(device.info.uuid, None)

    # --- who is next

    def may_be_next(self, client: Client) -> bool:
        """Whether the client comes next on each of its devices, so that it must have a permit."""
        wanted = [device for device in client.books if client.grant is None or client.grant not in device.grants]
        return bool(wanted) and all(self._comes_next(device, client) for device in wanted)

    def _turn_for(self, client: Client) -> tuple[int, bool] | None:
        """The number of the turn that the client may enter next, and whether that is the turn of others; None: it has
        to wait."""
        if not self.may_be_next(client):
            return None
        if client.grant:
            return client.grant.turn, False
        wanted = client.books
        running = {grant.turn for device in wanted for grant in device.grants}
        if len(running) == 1 and all(self._joins(device, client) for device in wanted if device.grants):
            return running.pop(), True
        return self._own_turn(client), False

    def _own_turn(self, client: Client) -> int:
        known = client.next
        own = known is not None and not known.joins and known.devices == client.devices
        return known.turn if known and own else self.next_turn()

    def _comes_next(self, device: Device, client: Client) -> bool:
        if device.left_until is not None or device.line.head(self.now) is not client:
            return False
        if self._borrower(device, client, self.now):
            return False
        # Nothing follows while clients of other coordinators wait, but for an overrun, which doesn't end anyway.
        return device.wanted_since is None or all(grant.overrun for grant in device.grants)

    def _joins(self, device: Device, client: Client) -> bool:
        # What runs together while others on this host wait would never end.
        free = device.wanted_since is None or any(grant.overrun for grant in device.grants)
        return free and self._together.packs(device, client)

    def _borrower(self, device: Device, head: Client | None, now: float) -> tuple[Client, int, bool] | None:
        """A client that needs only this device has a turn there, as long as any, while the first one in the line cannot
        start soon; with the number of that turn, and whether it is the turn of others."""
        if head is None or device.left_until is not None or not self._together.is_free(device):
            return None
        if not self._cannot_start_soon(device, head):
            return None
        for client in device.line.ordered(now):
            if client is head or client.books != (device,) or client.grant or client.ready_at > now:
                continue
            if not device.grants:
                return client, self._own_turn(client), False
            if client.rank == head.rank and device.wanted_since is None and self._together.packs(device, client):
                return client, device.grants[0].turn, True
        return None

    def _cannot_start_soon(self, device: Device, head: Client) -> bool:
        """Whether another device that it needs is taken for a time without bound: by a better class, a client that this
        coordinator does not know, an overrun."""
        return any(
            (other is not device and (other.taken_since is not None or other.left_until is not None))
            or self._together.is_kept_out(other, head)
            or any(grant.client.rank < head.rank for grant in other.grants)
            or ((first := other.line.head(self.now)) is not None and first.rank < head.rank)
            for other in head.books
        )

    # --- who has to go

    def _meet_deadline(self, grant: Grant, now: float) -> None:
        self.touch(grant.client)
        due = self._deadlines.due(grant)
        if due is not None and due <= now and not grant.draining:
            self.begin_closing(grant, now)

    def _settle(self, grant: Grant, now: float) -> None:
        """End a turn whose time is over, and interrupt one that should have ended."""
        if not grant.draining:
            due = self._deadlines.ends(grant, self._deadlines.deadline(grant))
            if due is not None and due <= now:  # a client came to wait after the quantum was over
                self.begin_closing(grant, now)
            return
        if is_to_be_interrupted(grant, self.settings, now) and self.contended(grant):
            grant.interrupted = True
            self._out.append(Interrupt(grant.client.id, grant.turn, grant.closing_for(now)))

    def _dismiss(self, grant: Grant, now: float) -> None:
        grant.parting = True
        self.begin_closing(grant, now)

    # --- what pages say

    def _wanted_permit(self, client: Client) -> Permit:
        """The client's permit as things stand."""
        grant, following, before = client.grant, client.next, client.permit
        if grant and not grant.draining:
            devices = following.devices if following else grant.devices
            relieved = any(self._is_relieved(self.devices[uuid], grant) for uuid in grant.devices)
            deadline = self._deadlines.deadline(grant)
            return Permit(client.id, grant.turn, 0, devices, True, relieved, self.contended(grant), deadline)
        if following and not grant:
            others = any(
                device.grants or device.wanted_since is not None or device.line.has_others(client)
                for device in client.books
            )
            return Permit(client.id, following.turn, 0, following.devices, True, contended=others)
        turn, devices = (before.turn, before.devices) if before else (0, ())
        return Permit(client.id, turn, 0, devices, False)

    def _is_relieved(self, device: Device, grant: Grant) -> bool:
        """Whether a client can follow without a command of the coordinator."""
        following = device.next.next if device.next and device.next is not grant.client else None
        return device.wanted_since is not None or (following is not None and following.turn != grant.turn)
