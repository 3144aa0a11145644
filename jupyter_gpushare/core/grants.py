"""The books of turns: who waits, who holds what. Changed in consistent steps; `turns` decides when and for whom."""

from __future__ import annotations

import math

from .agenda import Agenda
from .commands import Command, NameNext, Open, Unname
from .model import Client, Device, Grant, Held, Named, Process
from .policies import policy_of
from .settings import Settings

GRANT, LOCK, LINE = "grant", "lock", "line"  # what a key of the agenda is about
PAUSE = 1.0  # seconds without the device, after which a program without cells begins other work
EPOCHS = 1 << 29  # GPUSHARE_GATE_EPOCHS of page.h


class Grants:
    """The queue and the grants of all devices. Commands are appended to `out`."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        self.settings = settings
        self.now = -math.inf  # of the event that is being handled
        self.policy = policy_of(settings)
        self.devices = devices
        self.waiting: dict[str, Client] = {}
        self.grants: dict[str, Grant] = {}
        self.promised: dict[str, Named] = {}  # by client: named for a turn that is over, and not granted yet
        self.epoch = 0
        self._brought: dict[int, set[int]] = {}  # by process: epochs that it has from before, beyond what others follow
        self.waited = 0.0  # seconds, of all clients together
        self.agenda = Agenda()
        self.touched: dict[str, None] = {}  # devices on which something may have become possible
        self.stirred: dict[str, Client] = {}  # clients that may have begun, or ceased, to be idle
        self._out = out
        self._tickets = 0

    def touch(self, client: Client) -> None:
        self.stirred[client.id] = client
        for uuid in client.devices:
            self.touched[uuid] = None
        for uuid in client.grant.devices if client.grant else ():
            self.touched[uuid] = None

    def begin_work(self, client: Client, now: float) -> None:
        """The client's first open cell begins: other work than before."""
        grant = client.grant
        if grant:
            grant.earlier_work = now - grant.began - self._contended_seconds(grant, now)
        self.policy.begins_work(client, 0.0 if grant else now - client.last_ran, now)
        self.line_up_again(client, now)

    # --- the queue

    def enter_queue(self, client: Client, since: float, now: float, ticket: int | None = None) -> None:
        if client.waiting_since is not None or client.suspended:
            return
        client.waiting_since = since
        self.waiting[client.id] = client
        self.count(client)
        if ticket is None:
            self._tickets += 1
            ticket = self._tickets
            client.waits += 1
            if client.grant is None:
                client.demand.paused(now - max(client.last_ran, client.cells_since))
                if not client.cells and now - client.last_ran >= PAUSE:
                    self.policy.begins_work(client, now - client.last_ran, now)
            self.policy.waits(client, now)
            if client.allowance:
                client.allowance.wanted(now)
        client.ticket = ticket
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
        del self.waiting[client.id]
        for device in client.books:
            device.line.remove(client)
            self._may_leave(client, device)
        self.count(client)
        self.touch(client)

    def leave_queue_if_content(self, client: Client, now: float) -> None:
        """A thread gave up or a process ended: perhaps nothing is left to wait for."""
        if not (client.grant.uncovered if client.grant else client.wants):
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
        """Whether somebody waits who could run if it were over."""
        devices = [self.devices[uuid] for uuid in grant.devices]
        return any(device.line or device.wanted_since is not None for device in devices)

    def wanted_elsewhere(self, device: Device, wanted: bool, now: float) -> None:
        """Whether somebody waits for its lock of whom nothing else is known here."""
        if not wanted:
            device.wanted_since = None
            if device.yields:  # they have it, or have given up
                device.refused_until, device.yields = None, False
        elif device.wanted_since is None:
            device.wanted_since = now
        self.touched[device.info.uuid] = None

    # --- grants

    def name_next(self, grant: Grant, process: Process | None) -> None:
        """Let `process` take over from the grant's only one by the device's lock itself; None: nobody."""
        giver = next(iter(grant.client.processes.values()), None)
        if grant.named and grant.named.process is process and grant.named.giver is giver:
            return
        if grant.named:
            self.unname(grant.named)
            grant.named = None
        if process and giver:
            process.queued_at_lock = True
            grant.named = Named(process, giver, self.next_epoch())
            self._out.append(NameNext(process.client.id, grant.named.epoch, process.number, giver.number))

    def unname(self, named: Named) -> None:
        self._out.append(Unname(named.process.client.id, named.process.number, named.giver.number))

    def new_grant(self, client: Client, devices: tuple[str, ...], now: float, epoch: int | None = None) -> Grant:
        grant = client.grant = Grant(client, self.next_epoch() if epoch is None else epoch, (), now)
        self.grants[client.id] = grant
        client.quanta += 1
        self.set_evicted(client, False)
        self.count(client)
        self.cover(grant, devices)
        return grant

    def cover(self, grant: Grant, devices: tuple[str, ...]) -> None:
        """Make `devices`, which it can have or has already, part of the grant."""
        for uuid in set(devices) - set(grant.devices):
            self.devices[uuid].grants.append(grant)
            grant.counted[uuid] = self.now
        grant.devices = tuple(sorted({*grant.devices, *devices}))

    def let_run(self, grant: Grant, processes: list[Process], step: bool = False) -> None:
        """Open the gates of processes that the grant covers, under locks that their client holds."""
        for process in processes:
            process.wants = process.drained = process.evicting = False
            process.epoch = grant.epoch
        grant.announced = None  # their pages do not know the levels
        self._out.append(Open(grant.client.id, grant.epoch, tuple(process.number for process in processes), step))

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
        if grant.named:
            self.promised[grant.named.process.client.id] = grant.named
        self.touch(grant.client)
        grant.client.grant = None
        del self.grants[grant.client.id]
        self.agenda.set((GRANT, grant.client.id), None)
        for uuid in grant.devices:
            self.devices[uuid].grants.remove(grant)
            self._may_leave(grant.client, self.devices[uuid])
        self.count(grant.client)

    # --- epochs

    def next_epoch(self) -> int:
        """One that no process has from before: it might take itself to have drained of it."""
        self.epoch = (self.epoch + 1) % EPOCHS
        while any(self.epoch in epochs for epochs in self._brought.values()):
            self.epoch = (self.epoch + 1) % EPOCHS
        return self.epoch

    def follow_epochs(self, process: int, epochs: set[int]) -> None:
        """A process comes with epochs of an earlier coordinator. Only half of them may be claimed so that others
        follow, or a hostile process could make the epochs of others repeat."""
        self.epoch = max(self.epoch, min(max(epochs), EPOCHS // 2))
        self._brought[process] = {epoch for epoch in epochs if epoch > EPOCHS // 2}

    def forget_epochs(self, process: int) -> None:
        self._brought.pop(process, None)

    def knows_epoch(self, process: int, epoch: int) -> bool:
        """Whether the process can have it from here, or has it from before."""
        return epoch <= self.epoch or epoch in self._brought.get(process, ())
