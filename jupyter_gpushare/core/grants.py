"""The books of turns: who waits, who holds what. Changed in consistent steps; `turns` decides when and for whom."""

from __future__ import annotations

import math

from .agenda import Agenda
from .commands import Command
from .model import Client, Device, Grant, Held
from .permits import Permits
from .policies import policy_of
from .settings import Settings

GRANT, NEXT, GAP, LINE = "grant", "next", "gap", "line"  # what a key of the agenda is about
PAUSE = 1.0  # seconds without the device, after which a program without cells begins other work
FIRST_TURN = 1 << 32  # GPUSHARE_FIRST_TURN of page.h


class Grants:
    """The queue and the grants of all devices. Commands go to `out`; turns are numbered from `first_turn` on."""

    def __init__(
        self, settings: Settings, devices: dict[str, Device], out: list[Command], first_turn: int = FIRST_TURN
    ) -> None:
        self.settings = settings
        self.now = -math.inf  # of the event that is being handled
        self.policy = policy_of(settings)
        self.devices = devices
        self.waiting: dict[str, Client] = {}
        self.grants: dict[str, Grant] = {}
        self.permits = Permits()
        self.waited = 0.0  # seconds, of all clients together
        self.agenda = Agenda()
        self.touched: dict[str, None] = {}  # devices on which something may have become possible
        self.stirred: dict[str, Client] = {}  # clients that may have begun, or ceased, to be idle
        self._out = out
        self._tickets = 0
        self._turns = first_turn - 1

    def touch(self, client: Client) -> None:
        self.stirred[client.id] = client
        self.permits.touch(client)
        for uuid in {*client.devices, *(client.grant.devices if client.grant else ())}:
            self.touch_device(self.devices[uuid])

    def begin_work(self, client: Client, now: float) -> None:
        """The client's first open cell begins: other work than before."""
        grant = client.grant
        if grant:
            grant.earlier_work = now - grant.began - self._contended_seconds(grant, now)
        self.policy.begins_work(client, 0.0 if grant else now - client.last_ran, now)
        self.line_up_again(client, now)

    # --- the queue

    def enter_queue(self, client: Client, now: float) -> None:
        if client.waiting_since is not None or client.suspended:
            return
        client.waiting_since = now
        self.waiting[client.id] = client
        self.count(client)
        self._tickets += 1
        client.waits += 1
        if client.grant is None:
            client.demand.paused(now - max(client.last_ran, client.cells_since))
            if not client.cells and now - client.last_ran >= PAUSE:
                self.policy.begins_work(client, now - client.last_ran, now)
        self.policy.waits(client, now)
        if client.allowance:
            client.allowance.wanted(now)
        client.ticket = self._tickets
        for device in client.books:
            device.line.add(client, now)
            self._may_leave(client, device)
        self.touch(client)

    def leave_queue(self, client: Client, now: float) -> None:
        if client.waiting_since is None:
            return
        client.wait_seconds += now - client.waiting_since
        self.waited += now - client.waiting_since
        client.waiting_since = None
        self.retract(client)
        del self.waiting[client.id]
        for device in client.books:
            device.line.remove(client)
            if not device.line:
                device.taken_since = None
            self._may_leave(client, device)
        self.count(client)
        self.touch(client)

    def leave_queue_if_content(self, client: Client, now: float) -> None:
        """A thread gave up or a process ended: perhaps nothing is left to wait for."""
        if not (client.uncovered if client.grant else client.wants):
            self.leave_queue(client, now)

    def line_up_again(self, client: Client, now: float) -> None:
        """Its place in the queue may be another by now."""
        for device in client.books if client.waiting_since is not None else ():
            device.line.add(client, now)
            self._may_leave(client, device)

    def place(self, client: Client, devices: tuple[str, ...], now: float) -> None:
        """From now on `devices` are the client's."""
        self.touch(client)
        held = client.held
        self.hold(client, Held())
        self._discount(client)
        for device in client.books:
            device.line.remove(client)
            device.leavers.forget(client)
            del device.clients[client.id]
            device.bounded.pop(client.id, None)
        client.devices = devices
        client.books = tuple(self.devices[uuid] for uuid in devices)
        for device in client.books:
            device.clients[client.id] = client
        self.hold(client, held)
        self.bound(client)
        self.count(client)
        self.line_up_again(client, now)
        self.touch(client)

    def hold(self, client: Client, held: Held) -> None:
        """The client has that memory now, in equal parts on its devices."""
        count = max(1, len(client.devices))
        part = Held(held.allocated // count, held.resident // count, held.pinned // count)
        for device in client.books:
            device.allocated += part.allocated - client.part.allocated
            device.resident += part.resident - client.part.resident
            device.pinned += part.pinned - client.part.pinned
            device.changes += 1
        came = part.resident and not client.part.resident
        client.held, client.part = held, part
        for device in client.books if came else ():
            self._may_leave(client, device)
        client.peaks = (client.peaks[0], max(client.peaks[1], held.allocated - client.short))

    def _may_leave(self, client: Client, device: Device) -> None:
        """Its memory there may be the next to leave, now that it waits, or does not any more."""
        if client in device.line:
            device.leavers.waits(client, self.policy.key(client))
        elif client.grant is None:
            device.leavers.idle(client)

    def bound(self, client: Client) -> None:
        """Whether its memory leaves though there is room has changed, perhaps."""
        for device in client.books:
            device.changes += 1
            if client.suspended or client.evicted or client.quota.resident is not None:
                device.bounded[client.id] = client
            else:
                device.bounded.pop(client.id, None)

    def set_evicted(self, client: Client, evicted: bool) -> None:
        if client.evicted != evicted:
            client.evicted = evicted
            self.bound(client)

    def count(self, client: Client) -> None:
        """Among the rivals of its devices, if it waits or runs."""
        self._discount(client)
        if client.waiting_since is None and client.grant is None:
            return
        client.counted_share = self.policy.share(client)
        for device in client.books:
            device.rivals.add(client.tenant, client.counted_share)

    def _discount(self, client: Client) -> None:
        if client.counted_share is None:
            return
        for device in client.books:
            device.rivals.remove(client.tenant, client.counted_share)
        client.counted_share = None

    def contended(self, grant: Grant) -> bool:
        """Whether a client waits that could run if the turn were over."""
        devices = [self.devices[uuid] for uuid in grant.devices]
        return any(device.wanted_since is not None or device.line.has_others(grant.client) for device in devices)

    def wanted_elsewhere(self, device: Device, wanted: bool, now: float) -> None:
        """Whether a client that this coordinator does not know waits for the device."""
        if not wanted:
            device.wanted_since = device.left_until = None  # such a client has it now, or has given up
        elif device.wanted_since is None:
            device.wanted_since = now
        self.touch_device(device)

    def touch_device(self, device: Device) -> None:
        """Something may have become possible there, or the levels of who runs there may be others."""
        self.touched[device.info.uuid] = None
        for grant in device.grants:
            self.permits.touch(grant.client)
        if device.next:
            self.permits.touch(device.next)

    # --- permits to begin

    def retract(self, client: Client) -> None:
        """It is not the next one any more."""
        if client.next is None:
            return
        for uuid in client.next.devices:
            device = self.devices[uuid]
            if device.next is client:
                device.next = None
                self.touch_device(device)
        client.next = None
        self.permits.touch(client)
        self.agenda.set((NEXT, client.id), None)

    def next_turn(self) -> int:
        """A number that no turn has had."""
        self._turns += 1
        return self._turns

    # --- grants

    def new_grant(self, client: Client, turn: int, devices: tuple[str, ...], began: float) -> Grant:
        grant = client.grant = Grant(client, turn, (), began)
        self.grants[client.id] = grant
        client.quanta += 1
        self.set_evicted(client, False)
        self.count(client)
        self.cover(grant, devices, began)
        self.touch(client)
        return grant

    def cover(self, grant: Grant, devices: tuple[str, ...], since: float) -> None:
        """Make `devices` part of the grant; its client has had them since `since`."""
        for uuid in set(devices) - set(grant.devices):
            self.devices[uuid].grants.append(grant)
            grant.counted[uuid] = since
        grant.devices = tuple(sorted({*grant.devices, *devices}))
        self.touch(grant.client)

    def account(self, grant: Grant, now: float) -> None:
        """Add what was used of the grant so far to its client's sum."""
        client, seconds = grant.client, now - grant.began
        client.gpu_seconds += seconds
        client.held_seconds = client.held_seconds_at(now)
        self.policy.worked(client, seconds - grant.earlier_work, self._contended_seconds(grant, now))
        grant.counted = dict.fromkeys(grant.counted, now)
        client.usage.add(seconds, now)
        self.policy.ran(client, seconds, now)
        if client.allowance:
            client.allowance.ran(seconds, now)
        grant.began = now
        grant.lead = grant.earlier_work = 0.0

    def _contended_seconds(self, grant: Grant, now: float) -> float:
        """Return for how long another client has waited for one of the grant's devices, since `grant.began`."""
        since = min((self.devices[uuid].line.waits_since(grant.client.rank) for uuid in grant.devices), default=now)
        return max(0.0, now - max(since, grant.began))

    def end_grant(self, grant: Grant) -> None:
        self.touch(grant.client)
        self.retract(grant.client)  # what it was to take into this turn, it takes into the next one
        self.permits.use_up(grant.client)
        grant.client.grant = None
        del self.grants[grant.client.id]
        self.agenda.set((GRANT, grant.client.id), None)
        for uuid in grant.devices:
            device = self.devices[uuid]
            device.grants.remove(grant)
            device.free_since = self.now
            self._may_leave(grant.client, device)
        self.count(grant.client)
