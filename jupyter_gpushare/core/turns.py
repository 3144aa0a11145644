"""Turns: who is granted the devices, when a turn ends, and how it is closed."""

from __future__ import annotations

from .commands import Close, Command, Free, Open, Orders, Overrun
from .commands import Grant as GrantCommand
from .errors import Refused
from .model import Client, Device, Grant, Process, Settings
from .policies import POLICIES, Policy

EPOCHS = 1 << 30


class Turns:
    """The queue and the grants of all devices. Decisions are appended to `out`."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        self.settings = settings
        self.policy = policy_of(settings)
        self.devices = devices
        self.waiting: dict[str, Client] = {}
        self.grants: dict[str, Grant] = {}
        self.epoch = 0
        self._out = out
        self._tickets = 0

    def configure(self, settings: Settings) -> None:
        """Raises Refused, having changed nothing."""
        self.policy = policy_of(settings)
        self.settings = settings

    def next_deadline(self) -> float | None:
        times = [time for grant in self.grants.values() if (time := self._due(grant)) is not None]
        times += [d.refused_until for d in self.devices.values() if d.refused_until is not None and d.waiting]
        return min(times, default=None)

    def quantum(self, client: Client) -> float:
        return self.policy.quantum(client, self.settings)

    def advance(self, now: float) -> None:
        """Do what is due at `now`, and what has become possible."""
        for device in self.devices.values():
            if device.refused_until is not None and device.refused_until <= now:
                device.refused_until = None
        for grant in list(self.grants.values()):
            due = self._due(grant)
            while due is not None and due <= now and grant.client.grant is grant:
                self._act_when_due(grant, now)
                due = self._due(grant)
            if self._closed_for_nobody(grant):
                self._withdraw_closing(grant)
        self._grant_waiting(now)
        for grant in list(self.grants.values()):
            if not grant.draining:
                self._announce(grant)
                due = self._due(grant)
                if due is not None and due <= now:  # somebody came to wait after its quantum was over
                    self.begin_closing(grant, now)

    def _due(self, grant: Grant) -> float | None:
        if grant.draining:
            return grant.next_try if grant.reopen_until is None else grant.reopen_until
        linger = None if grant.cells_ended is None else grant.cells_ended + self.settings.cell_linger
        deadline = self._deadline(grant)
        return min((time for time in (linger, deadline) if time is not None), default=None)

    def _act_when_due(self, grant: Grant, now: float) -> None:
        if not grant.draining:
            self.begin_closing(grant, now)
        elif grant.reopen_until is not None:
            self._close(grant, now)
        else:
            self._retry_closing(grant, now)

    def _deadline(self, grant: Grant) -> float | None:
        return grant.began + self.quantum(grant.client) if self.contended(grant) else None

    def contended(self, grant: Grant) -> bool:
        return any(self.devices[uuid].waiting for uuid in grant.devices)

    def _announce(self, grant: Grant) -> None:
        levels = (self.contended(grant), self._deadline(grant))
        if levels != grant.announced:
            grant.announced = levels
            self._out.append(Orders(grant.client.id, *levels))

    def begin_closing(self, grant: Grant, now: float) -> None:
        if not grant.draining:
            grant.closing_since = now
            self._close(grant, now)

    def _close(self, grant: Grant, now: float) -> None:
        grant.reopen_until = None
        # Doubled with every try: a queue of launches that a slice refills must have time to run empty.
        grant.next_try = now + self.settings.drain_retry * 2 ** min(grant.tries, 7)
        opened = tuple(process.number for process in grant.client.processes.values() if not process.drained)
        self._out.append(Close(grant.client.id, grant.epoch, opened))

    def _reopen(self, grant: Grant) -> None:
        grant.epoch = self._next_epoch()
        self.let_run(grant, grant.processes)

    def _closed_for_nobody(self, grant: Grant) -> bool:
        """Whether the client wants to go on and nobody else waits: its next cell came while the last one drained."""
        return (
            grant.draining
            and not grant.gate_open
            and not self.contended(grant)
            and grant.client.wants
            and all(process in grant.processes for process in grant.client.processes.values() if process.wants)
        )

    def _withdraw_closing(self, grant: Grant) -> None:
        grant.closing_since = grant.next_try = grant.cells_ended = None
        grant.tries = 0
        grant.overrun = False
        self._reopen(grant)

    def _retry_closing(self, grant: Grant, now: float) -> None:
        """Not drained in time. If threads of the client stand at the gate, the work on the device may wait for them:
        let all of them through for a short slice and close again; after a few tries, for growing slices, as an
        overrun."""
        settings = self.settings
        grant.next_try = now + settings.drain_retry
        late = 0.0 if grant.closing_since is None else now - grant.closing_since
        if any(process.wants for process in grant.processes):
            grant.tries += 1
            beyond = grant.tries - settings.drain_tries
            grant.reopen_until = now + (
                settings.drain_slice if beyond <= 0 else min(2.0 ** min(beyond - 1, 10), settings.time_quantum)
            )
            self._reopen(grant)
        too_late = grant.tries > settings.drain_tries or late >= settings.overrun_after
        if too_late and not grant.overrun and self.contended(grant):
            grant.overrun = True
            self._out.append(Overrun(grant.client.id, grant.epoch, late))

    def _grant_waiting(self, now: float) -> None:
        """In the policy's order. A client that cannot start yet claims its devices, so that gangs never starve."""
        if not self.waiting:
            return
        claimed: set[str] = set()
        for client in self.policy.order(self.waiting.values(), now):
            if client.devices and all(self._free(uuid) and uuid not in claimed for uuid in client.devices):
                self._grant(client, now)
            else:
                claimed.update(client.devices)
            if len(claimed) == len(self.devices):
                return

    def _free(self, uuid: str) -> bool:
        device = self.devices[uuid]
        return not device.grants and device.refused_until is None

    def _grant(self, client: Client, now: float) -> None:
        since = client.waiting_since
        self.leave_queue(client, now)
        grant = self.new_grant(client, client.devices, now)
        grant.waited_since = since
        grant.wanting = tuple(number for number, process in client.processes.items() if process.wants)
        for process in client.processes.values():
            process.wants = process.drained = False
        self._out.append(GrantCommand(client.id, grant.epoch, grant.devices, tuple(client.processes)))

    def new_grant(self, client: Client, devices: tuple[str, ...], now: float) -> Grant:
        grant = client.grant = Grant(client, self._next_epoch(), (), now)
        self.grants[client.id] = grant
        client.quanta += 1
        self.cover(grant, devices)
        return grant

    def cover(self, grant: Grant, devices: tuple[str, ...]) -> None:
        """Make `devices`, which are free or the grant's already, part of the grant."""
        for uuid in set(devices) - set(grant.devices):
            self.devices[uuid].grants.append(grant)
        grant.devices = tuple(sorted({*grant.devices, *devices}))

    def adopt(self, process: Process, now: float) -> bool:
        """Take a process that runs already, and whose devices' locks are held, into its client's grant.

        False, with nothing changed, if somebody else has one of them.
        """
        client = process.client
        if any(grant is not client.grant for uuid in process.devices for grant in self.devices[uuid].grants):
            return False
        if client.grant is None:
            self.leave_queue(client, now)
        grant = client.grant or self.new_grant(client, process.devices, now)
        self.cover(grant, process.devices)
        if not grant.gate_open:
            process.drained = False
            self._out.append(Close(client.id, grant.epoch, (process.number,)))
            return True
        self.let_run(grant, [p for p in grant.processes if p.drained])
        if client.wants:  # a process on devices that were not running
            self.begin_closing(grant, now)
        return True

    def let_run(self, grant: Grant, processes: list[Process]) -> None:
        """Open the gates of processes that the grant covers and that are not open yet."""
        for process in processes:
            process.wants = process.drained = False
        grant.announced = None  # their pages do not know the levels
        self._out.append(Open(grant.client.id, grant.epoch, tuple(process.number for process in processes)))

    def finish(self, grant: Grant, now: float) -> None:
        """The turn is over: free the devices, and queue the client again if threads of it wait."""
        client = grant.client
        held = now - grant.began
        client.gpu_seconds += held
        client.mean_turn = held if client.mean_turn is None else 0.7 * client.mean_turn + 0.3 * held
        for uuid in grant.devices:
            self.devices[uuid].refusals = 0
        self.end_grant(grant)
        self._out.append(Free(client.id, grant.devices))
        if client.wants:
            self.enter_queue(client, now)

    def take_back(self, grant: Grant, now: float) -> None:
        """Somebody else holds a lock of the devices just granted: queue the client where it was and try again soon."""
        client = grant.client
        for uuid in grant.devices:
            device = self.devices[uuid]
            device.refused_until = now + self.settings.lock_retry * 2 ** min(device.refusals, 4)
            device.refusals += 1
        self.end_grant(grant)
        client.quanta -= 1
        for process in client.processes.values():
            process.wants = process.number in grant.wanting
            process.drained = True
        if client.wants and grant.waited_since is not None:
            client.wait_seconds -= grant.began - grant.waited_since
            self.enter_queue(client, grant.waited_since, client.ticket)

    def end_grant(self, grant: Grant) -> None:
        grant.client.grant = None
        del self.grants[grant.client.id]
        for uuid in grant.devices:
            self.devices[uuid].grants.remove(grant)

    def _next_epoch(self) -> int:
        self.epoch = (self.epoch + 1) % EPOCHS
        return self.epoch

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


def policy_of(settings: Settings) -> Policy:
    """Raises Refused for an unknown name."""
    try:
        return POLICIES[settings.policy]()
    except KeyError:
        raise Refused(f"policy={settings.policy!r} is unknown: allowed are {', '.join(POLICIES)}") from None
