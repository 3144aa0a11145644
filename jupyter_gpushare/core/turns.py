"""Turns: who is granted the devices, together with whom, and when a turn ends."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields, replace

from .allowance import Allowance
from .closing import Closing
from .commands import Close, Command, Free, Limits, Orders
from .commands import Grant as GrantCommand
from .errors import IllegalEvent
from .grants import GRANT, LINE, LOCK
from .leavers import Leavers
from .line import Line
from .model import Before, Client, Device, DeviceInfo, Grant, Process
from .policies import policy_of
from .settings import AUTO, EXCLUSIVE, LONGEST_QUANTUM, PACKED, Settings
from .sharing import Sharing
from .tuning import Tuner

_FULL = 1.1  # what clients who run together may ask for of a device: some of it is estimated
_UNKNOWN = 0.5  # what a client asks for of which nothing is known yet
_LONG = 30.0  # seconds of recent use

_SLOW_LINK = 10e9  # bytes a second at which memory comes back, until it has been measured


class Turns(Closing):
    """Decides, over the books of grants. What an event may have changed is looked at device by device."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        super().__init__(settings, devices, out)
        self.now = -math.inf
        self.sharing = Sharing(lambda client: self.policy.share(client), self.quantum)
        self._tuner = Tuner()
        self._claims: dict[str, Client] = {}  # by device: it is free, and kept for this client

    def configure(self, settings: Settings, now: float) -> None:
        """Raises Refused, having changed nothing."""
        settings = self._tuner.applied(settings)
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
                self.agenda.set((GRANT, grant.client.id), self._due(grant))
        return seen

    def _claims_passed_on(self, now: float) -> bool:
        """Touch devices that are kept free for a gang that is not the next one there any more: its tenant has used
        others meanwhile, or somebody has waited for too long."""
        for uuid, head in self._claims.items():
            if self.devices[uuid].line.head(now) is not head:
                self.touched[uuid] = None
        return bool(self.touched)

    def _look_at(self, device: Device, now: float) -> None:
        if device.refused_until is not None and device.refused_until <= now:
            device.refused_until = None
        device.line.settle(now)
        for grant in list(device.grants):
            if self.closed_for_nobody(grant, now):
                self.withdraw_closing(grant)
        self._part(device, now)
        # A client that cannot start yet claims its devices, so that gangs never starve.
        while (head := device.line.head(now)) and self.can_start(head):
            self._grant(head, now)
        if head and not device.grants and self._cannot_start_soon(head):
            self._lend(device, head, now)
        if head and not device.grants:
            self._claims[device.info.uuid] = head
        else:
            self._claims.pop(device.info.uuid, None)

    def _cannot_start_soon(self, head: Client) -> bool:
        """Whether a device that it needs too is taken for a time without bound: by a better class, or a lock."""
        return any(
            device.refused_until is not None
            or any(grant.client.rank < head.rank for grant in device.grants)
            or ((first := device.line.head(self.now)) is not None and first.rank < head.rank)
            for device in head.books
        )

    def _lend(self, device: Device, head: Client, now: float) -> None:
        """Meanwhile the next one that needs only this device has a turn there, as long as any."""
        if device.refused_until is not None:
            return
        for client in device.line.ordered(now):
            if client is not head and client.books == (device,) and not client.grant and client.ready_at <= now:
                self._grant(client, now)
                return

    def _meet_deadlines(self, grant: Grant, now: float) -> None:
        due = self._due(grant)
        while due is not None and due <= now and grant.client.grant is grant and grant.draining:
            if grant.reopen_until is not None:
                self.close(grant, now)
            else:
                self.retry_closing(grant, now)
            due = self._due(grant)
        if due is not None and due <= now and not grant.draining:
            self.begin_closing(grant, now)

    def _settle(self, grant: Grant, now: float) -> None:
        """Tell a grant's processes what has changed for them."""
        if not grant.draining:
            deadline = self._deadline(grant)
            levels = (self.contended(grant), deadline)
            if levels != grant.announced:
                grant.announced = levels
                self._out.append(Orders(grant.client.id, *levels))
            due = self._ends(grant, deadline)
            if due is not None and due <= now:  # somebody came to wait after its quantum was over
                self.begin_closing(grant, now)
        self.name_next(grant, self._successor(grant, now))

    def _due(self, grant: Grant) -> float | None:
        if grant.draining:
            return grant.next_try if grant.reopen_until is None else grant.reopen_until
        return self._ends(grant, self._deadline(grant))

    def _ends(self, grant: Grant, deadline: float | None) -> float | None:
        """When it is to be closed: at its deadline, or some time after the end of a cell."""
        if grant.cells_ended is None:
            return deadline
        lingered = max(grant.cells_ended + self.settings.cell_linger, grant.client.hold_until or 0.0)
        return lingered if deadline is None else min(deadline, lingered)

    def _deadline(self, grant: Grant) -> float | None:
        """When the turn ends, working or not: somebody waits for it, or the client has had what it may have."""
        client = grant.client
        if client.suspended:
            return grant.began
        ends = math.inf
        for uuid in grant.devices:
            ends = min(ends, self._until(grant, self.devices[uuid]))
        if client.allowance:
            ends = min(ends, client.allowance.ends_at(grant.began))
        return None if ends == math.inf else ends

    def _until(self, grant: Grant, device: Device) -> float:
        client = grant.client
        head = device.line.head(self.now)
        if head is None:
            return math.inf
        if head.rank < client.rank:
            return grant.began
        if head.rank > client.rank:
            # Offline ones have what online ones leave: also what they keep unused, when a hold is over.
            return math.inf if client.hold_until is None or not grant.idle else client.hold_until
        ends = self.policy.until(grant, head, device.line.patience_ends(head.rank))
        ends = max(ends, self._memory_there(device, head))
        if client.hold_until is None:
            return ends
        # However often it is asked for, nobody waits for longer because of it.
        waiting_since = device.line.patience_ends(head.rank) - self.settings.max_wait
        held = min(client.hold_until, waiting_since + self.settings.max_hold)
        return held if grant.idle else max(ends, held)

    def _tell_pace(self, client: Client) -> None:
        """Its processes know how long a turn is and when they count as idle; these may follow from measurements."""
        pace = (self.quantum(client), self.idle_release(client))
        if any(not 0.8 <= new / old <= 1.25 for new, old in zip(pace, client.pace, strict=True)):
            self._out.append(Limits(client.id))
            client.pace = pace

    def _memory_there(self, device: Device, head: Client) -> float:
        """Until when the memory of the next client comes back while others work: no sooner does it need the device."""
        missing = head.part.allocated - head.part.resident
        if missing <= 0 or head.waiting_since is None or not head.restores or head.evicted:
            return -math.inf
        running = sum(grant.client.part.allocated for grant in device.grants)
        if running + head.part.allocated > device.info.memory:
            return -math.inf  # theirs has to leave before
        return head.waiting_since + max(2 * head.switching.restore, missing / _SLOW_LINK)

    # --- who runs

    def can_start(self, client: Client) -> bool:
        """It is the next one on each of its devices, and there is room for it."""
        return bool(client.books) and all(self._has_room(device, client) for device in client.books)

    def _has_room(self, device: Device, client: Client) -> bool:
        if client.grant and client.grant in device.grants:
            return True
        if device.refused_until is not None or device.line.head(self.now) is not client:
            return False
        return not device.grants or self._packs(device, client)

    def _packs(self, device: Device, client: Client) -> bool:
        """Whether the client may run beside those who have the device."""
        return not client.grant and all(grant.shared for grant in device.grants) and self._suits(device, client)

    def _suits(self, device: Device, client: Client) -> bool:
        members = [grant.client for grant in device.grants]
        if self.settings.sharing == EXCLUSIVE or not fits(device, [*members, client]):
            return False
        if self.settings.sharing == PACKED:
            return True
        # Who must share a busy device is later done, and short work most of all: only what is long is tried out there.
        together = [*members, client]
        shares = any(self.policy.share(one) for one in together)  # turns keep them better
        unknown = 1.0 if shares else _UNKNOWN
        asked = sum(unknown if one.demand.fraction is None else one.demand.fraction for one in together)
        if asked > _FULL and len({one.rank for one in together}) == 1:
            if shares:
                return False
            used = [self.policy.usage(one).at(self.now) for one in together]
            if min(used) < max(_LONG, max(used) / 3):
                return False
        return self.sharing.suit(device, client, members, self.now)

    def _part(self, device: Device, now: float) -> None:
        """Clients that ran together fit no longer, or are in each other's way: an offline one goes, or the last one."""
        running = [grant for grant in device.grants if not grant.draining]
        running.sort(key=lambda grant: grant.client.rank)
        while len(running) > 1:
            together = self.settings.sharing != EXCLUSIVE and fits(device, [grant.client for grant in running])
            if together:
                break
            self._dismiss(running.pop(), now)
        loser = self.sharing.loser(device, now) if self.settings.sharing == AUTO and len(running) > 1 else None
        if loser and loser.grant and loser.grant in running:
            self._dismiss(loser.grant, now)

    def _dismiss(self, grant: Grant, now: float) -> None:
        grant.parting = True
        self.begin_closing(grant, now)

    def _successor(self, grant: Grant, now: float) -> Process | None:
        """Who can take over by the lock itself: that takes one process with one device on either side."""
        if len(grant.devices) != 1 or not self.contended(grant):
            return None
        (uuid,) = grant.devices
        device = self.devices[uuid]
        givers = list(grant.client.processes.values())
        if len(givers) != 1 or not givers[0].relays or len(device.grants) != 1 or device.refused_until is not None:
            return None
        client = device.line.head(now)
        if client is None or client is grant.client:
            return None
        processes = list(client.processes.values())
        if client.devices != grant.devices or len(processes) != 1 or self._suits(device, client):
            return None  # who may run beside it needs the coordinator: a lock that is taken over is an exclusive one
        return processes[0] if processes[0].relays else None

    def _grant(self, client: Client, now: float) -> None:
        """Begin a turn; or extend one that cannot end, to the devices that its waiting threads need."""
        grant = client.grant
        before = Before(
            grant=replace(grant) if grant else None,
            waiting_since=client.waiting_since,
            wanting=frozenset(number for number, process in client.processes.items() if process.wants),
            drained=frozenset(number for number, process in client.processes.items() if process.drained),
            epochs=tuple((number, process.epoch) for number, process in client.processes.items()),
            evicted=client.evicted,
        )
        self.leave_queue(client, now)
        if grant is None:
            named = self.promised.pop(client.id, None)
            grant = self.new_grant(client, client.devices, now, named.epoch if named else None)
            grant.shared = named is None and self.settings.sharing != EXCLUSIVE  # a lock taken over is an exclusive one
            # Or a short quantum would be over before the memory is back, turn after turn.
            missing = client.part.allocated - client.part.resident if client.restores else 0
            grant.lead = grant.expected_lead = min(
                max(client.switching.restore, missing / _SLOW_LINK) if missing else 0.0, LONGEST_QUANTUM
            )
            added = grant.devices
        else:
            added = tuple(uuid for uuid in client.devices if uuid not in grant.devices)
            self.account(grant, now)
            self.set_evicted(client, False)
            self.cover(grant, added)
            grant.forget_closing()
            grant.epoch = self.next_epoch()
            grant.announced = None
        grant.before = before
        for process in client.processes.values():
            process.wants = process.drained = False
            process.epoch = grant.epoch
        self._out.append(GrantCommand(client.id, grant.epoch, added, tuple(client.processes), grant.shared))

    def adopt(self, process: Process, now: float, shared: bool = False) -> bool:
        """Take a process that runs already, and whose devices' locks are held, into its client's grant.

        False, with nothing changed, if somebody else has one of them.
        """
        client = process.client
        others = [grant for uuid in process.devices for grant in self.devices[uuid].grants if grant is not client.grant]
        if others and not (shared and all(grant.shared for grant in others)):
            return False
        grant = client.grant
        if grant is None:
            self.leave_queue(client, now)
            grant = self.new_grant(client, process.devices, now)
            grant.shared = shared
        self.cover(grant, process.devices)
        if not grant.gate_open:
            process.drained = False
            process.epoch = grant.epoch
            self._out.append(Close(client.id, grant.epoch, (process.number,)))
            return True
        self.let_run(grant, [p for p in grant.processes if p.drained])
        if client.wants:  # a process on devices that were not running
            self.begin_closing(grant, now)
        return True

    def finish(self, grant: Grant, now: float) -> None:
        """The turn is over: free the devices, and queue the client again if threads of it wait."""
        client = grant.client
        held, lead = now - grant.began, grant.lead if grant.restored else 0.0
        client.switching.restored(lead)
        if grant.expected_lead or grant.restored:
            client.restores = grant.restored
        self.account(grant, now)
        if grant.closing_since is not None:
            drained = now if grant.evicting_since is None else grant.evicting_since
            client.switching.drained(drained - grant.closing_since, now - drained)
        if client.allowance:
            client.allowance.fit(self.policy.quantum(client), client.switching.cost)
        client.last_ran = now
        client.peaks = (client.peaks[1], client.held.allocated)
        client.mean_turn = held if client.mean_turn is None else 0.7 * client.mean_turn + 0.3 * held
        for uuid in grant.devices:
            self.devices[uuid].refusals = 0
        self.end_grant(grant)
        self._out.append(Free(client.id, grant.devices))
        if client.wants:
            self.enter_queue(client, now, now)
        switching = lead + (0.0 if grant.closing_since is None else now - grant.closing_since)
        self.settings = self._tuner.turn_ended(self.settings, self.waited, switching, held - switching, now)
        self.policy.settings = self.settings
        self._tell_pace(client)

    def take_back(self, grant: Grant, now: float) -> None:
        """Somebody else holds a lock of the devices just granted: all is as it was, and it is tried again soon."""
        client, before = grant.client, grant.before
        self.name_next(grant, None)
        if before is None:
            raise IllegalEvent(f"the turn of client {client.id} did not begin with a Grant")
        held = before.grant.devices if before.grant else ()
        for uuid in set(grant.devices) - set(held):
            device = self.devices[uuid]
            device.refused_until = now + self.settings.lock_retry * 2 ** min(device.refusals, 4)
            device.refusals += 1
            device.grants.remove(grant)
        if before.waiting_since is not None:
            client.wait_seconds -= grant.began - before.waiting_since
        if before.grant:
            for field in fields(grant):
                if field.name not in ("began", "lead"):  # what was used until now is accounted for
                    setattr(grant, field.name, getattr(before.grant, field.name))
        else:
            grant.devices = ()
            self.end_grant(grant)
            client.quanta -= 1
        self.set_evicted(client, before.evicted)
        epochs = dict(before.epochs)
        for number, process in client.processes.items():
            process.wants = number in before.wanting
            process.drained = number in before.drained
            process.epoch = epochs.get(number, process.epoch)
        if before.waiting_since is not None:
            self.enter_queue(client, before.waiting_since, now, client.ticket)


def fits(device: Device, clients: list[Client]) -> bool:
    """Whether all that the clients have, or had a turn ago, is on the device at the same time."""
    return sum(needs(client) for client in clients) <= device.info.memory


def needs(client: Client) -> int:
    """Bytes on each of its devices."""
    return max(client.peaks) // max(1, len(client.devices))
