"""The books of turns: who waits, who holds what. Changed in consistent steps; `turns` decides when and for whom."""

from __future__ import annotations

from .commands import Command, NameNext, Open, Unname
from .model import Client, Device, Grant, Named, Process

EPOCHS = 1 << 29  # GPUSHARE_GATE_EPOCHS of page.h


class Grants:
    """The queue and the grants of all devices. Commands are appended to `out`."""

    def __init__(self, devices: dict[str, Device], out: list[Command]) -> None:
        self.devices = devices
        self.waiting: dict[str, Client] = {}
        self.grants: dict[str, Grant] = {}
        self.promised: dict[str, Named] = {}  # by client: named for a turn that is over, and not granted yet
        self.epoch = 0
        self._out = out
        self._tickets = 0

    # --- the queue

    def enter_queue(self, client: Client, since: float, ticket: int | None = None) -> None:
        if client.waiting_since is not None:
            return
        if ticket is None:
            self._tickets += 1
            ticket = self._tickets
        client.ticket = ticket
        client.waiting_since = since
        self.waiting[client.id] = client
        for uuid in client.devices:
            self.devices[uuid].waiting += 1

    def leave_queue(self, client: Client, now: float) -> None:
        if client.waiting_since is None:
            return
        client.wait_seconds += now - client.waiting_since
        client.waiting_since = None
        del self.waiting[client.id]
        for uuid in client.devices:
            self.devices[uuid].waiting -= 1

    def leave_queue_if_content(self, client: Client, now: float) -> None:
        """A thread gave up or a process ended: perhaps nothing is left to wait for."""
        if not (client.grant.uncovered if client.grant else client.wants):
            self.leave_queue(client, now)

    def contended(self, grant: Grant) -> bool:
        return any(self.devices[uuid].waiting for uuid in grant.devices)

    def free(self, uuid: str, client: Client) -> bool:
        """Whether the device can be the client's now, or is already."""
        device = self.devices[uuid]
        return device.refused_until is None and all(grant.client is client for grant in device.grants)

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
            grant.named = Named(process, giver, self.next_epoch())
            self._out.append(NameNext(process.client.id, grant.named.epoch, process.number, giver.number))

    def unname(self, named: Named) -> None:
        self._out.append(Unname(named.process.client.id, named.process.number, named.giver.number))

    def new_grant(self, client: Client, devices: tuple[str, ...], now: float, epoch: int | None = None) -> Grant:
        grant = client.grant = Grant(client, self.next_epoch() if epoch is None else epoch, (), now)
        self.grants[client.id] = grant
        client.quanta += 1
        self.cover(grant, devices)
        return grant

    def cover(self, grant: Grant, devices: tuple[str, ...]) -> None:
        """Make `devices`, which are free or the grant's already, part of the grant."""
        for uuid in set(devices) - set(grant.devices):
            self.devices[uuid].grants.append(grant)
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
        grant.client.gpu_seconds += now - grant.began
        grant.began = now
        grant.lead = 0.0

    def end_grant(self, grant: Grant) -> None:
        if grant.named:
            self.promised[grant.named.process.client.id] = grant.named
        grant.client.grant = None
        del self.grants[grant.client.id]
        for uuid in grant.devices:
            self.devices[uuid].grants.remove(grant)

    def next_epoch(self) -> int:
        self.epoch = (self.epoch + 1) % EPOCHS
        return self.epoch
