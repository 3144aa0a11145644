"""Turns: who is granted the devices, when a turn ends, and how it is closed."""

from __future__ import annotations

from dataclasses import fields, replace

from .commands import Close, Command, Free, Orders, Overrun
from .commands import Grant as GrantCommand
from .errors import IllegalEvent, Refused
from .grants import Grants
from .model import Before, Client, Device, Grant, Process, Settings
from .policies import POLICIES, Policy


class Turns(Grants):
    """Decides, over the books of grants."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        super().__init__(devices, out)
        self.settings = settings
        self.policy = policy_of(settings)

    def configure(self, settings: Settings) -> None:
        """Raises Refused, having changed nothing."""
        self.policy = policy_of(settings)
        self.settings = settings

    def next_deadline(self) -> float | None:
        times = [time for grant in self.grants.values() if (time := self._due(grant)) is not None]
        times += [d.refused_until for d in self.devices.values() if d.refused_until is not None and d.waiting]
        return min(times, default=None)

    def ends_turn(self, due: float) -> bool:
        """Whether `due` is the deadline of a turn, as announced to its processes."""
        return any(grant.announced == (True, due) and not grant.draining for grant in self.grants.values())

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
        while self.promised:
            self.unname(self.promised.popitem()[1])
        for grant in list(self.grants.values()):
            if not grant.draining:
                self._announce(grant)
                due = self._due(grant)
                if due is not None and due <= now:  # somebody came to wait after its quantum was over
                    self.begin_closing(grant, now)
            self.name_next(grant, self._successor(grant, now))

    def _successor(self, grant: Grant, now: float) -> Process | None:
        """Who can take over by the lock itself: that takes one process with one device on either side."""
        if len(grant.devices) != 1 or not self.contended(grant):
            return None
        (uuid,) = grant.devices
        device = self.devices[uuid]
        givers = list(grant.client.processes.values())
        if len(givers) != 1 or not givers[0].relays or len(device.grants) != 1 or device.refused_until is not None:
            return None
        queue = (c for c in self.policy.order(self.waiting.values(), now) if uuid in c.devices)
        client = next(queue, grant.client)
        processes = list(client.processes.values())
        if client is grant.client or client.devices != grant.devices or len(processes) != 1:
            return None
        return processes[0] if processes[0].relays else None

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
        return grant.began + grant.lead + self.quantum(grant.client) if self.contended(grant) else None

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
        wait = self.settings.drain_retry
        if grant.alternating or 0 < grant.tries <= self.settings.drain_steps:
            wait = self.settings.drain_slice  # steps add next to nothing to what must drain
        elif grant.tries:
            # Doubled with every whole slice: a queue of launches that it refills must have time to run empty.
            wait *= 2 ** min(grant.tries - self.settings.drain_steps, 7)
        grant.next_try = now + wait
        grant.alternating = False
        opened = [process for process in grant.client.processes.values() if not process.drained]
        for process in opened:
            process.epoch = grant.epoch
        self._out.append(Close(grant.client.id, grant.epoch, tuple(process.number for process in opened)))

    def _reopen(self, grant: Grant, processes: list[Process], step: bool = False) -> None:
        grant.epoch = self.next_epoch()
        self.let_run(grant, processes, step)

    def _closed_for_nobody(self, grant: Grant) -> bool:
        """Whether the client wants to go on and nobody else waits: its next cell came while the last one drained."""
        return (
            grant.draining
            and not grant.gate_open
            and not self.contended(grant)
            and grant.client.wants
            and not grant.uncovered
        )

    def _withdraw_closing(self, grant: Grant) -> None:
        grant.forget_closing()
        self._reopen(grant, grant.processes)

    def _retry_closing(self, grant: Grant, now: float) -> None:
        """Not drained in time. If threads of the client stand at the gate, the work on the device may wait for them:
        let them through for a short slice and close again; after some tries, for growing slices, as an overrun. If
        those threads need further devices, the client waits for these as for any others.

        Ranks that wait for each other at every step would be caught in the midst of one again and again. So first only
        the very calls that stand at the gate are let through, and if some processes have drained, mostly only theirs:
        that is what the others wait for, and nothing new."""
        settings = self.settings
        grant.next_try = now + settings.drain_retry
        if all(process.drained or process.evicting for process in grant.client.processes.values()):
            return  # nothing on the device waits for anybody
        late = 0.0 if grant.closing_since is None else now - grant.closing_since
        if wanting := [p for p in grant.processes if p.wants and not p.evicting]:
            grant.tries += 1
            step = grant.tries <= settings.drain_steps
            beyond = grant.tries - settings.drain_steps - settings.drain_tries
            grant.reopen_until = now + (
                settings.drain_slice if beyond <= 0 else min(2.0 ** min(beyond - 1, 10), settings.time_quantum)
            )
            behind = [process for process in wanting if process.drained]
            self._reopen(grant, behind if step and behind and grant.tries % 4 else wanting, step)
        if grant.uncovered:
            self.enter_queue(grant.client, now)
        too_late = grant.tries > settings.drain_steps + settings.drain_tries or late >= settings.overrun_after
        if too_late and not grant.overrun and self.contended(grant):
            grant.overrun = True
            self._out.append(Overrun(grant.client.id, grant.epoch, late))

    def slice_helped(self, grant: Grant, now: float) -> None:
        """A process has drained. If that was in a slice of others, then it needed them. When they wait for it in turn,
        there is no use in long patience; when all have drained, none in the rest of the slice."""
        if grant.reopen_until is None:
            return
        grant.tries = 0
        grant.alternating = True
        if all(process.drained or grant.has_open(process) for process in grant.client.processes.values()):
            self._close(grant, now)

    def _grant_waiting(self, now: float) -> None:
        """In the policy's order. A client that cannot start yet claims its devices, so that gangs never starve."""
        if not self.waiting:
            return
        claimed: set[str] = set()
        for client in self.policy.order(self.waiting.values(), now):
            if client.devices and all(self.free(uuid, client) and uuid not in claimed for uuid in client.devices):
                self._grant(client, now)
            else:
                claimed.update(client.devices)
            if len(claimed) == len(self.devices):
                return

    def _grant(self, client: Client, now: float) -> None:
        """Begin a turn; or extend one that cannot end, to the devices that its waiting threads need."""
        grant = client.grant
        before = Before(
            grant=replace(grant) if grant else None,
            waiting_since=client.waiting_since,
            wanting=frozenset(number for number, process in client.processes.items() if process.wants),
            drained=frozenset(number for number, process in client.processes.items() if process.drained),
            epochs=tuple((number, process.epoch) for number, process in client.processes.items()),
        )
        self.leave_queue(client, now)
        if grant is None:
            named = self.promised.pop(client.id, None)
            grant = self.new_grant(client, client.devices, now, named.epoch if named else None)
            added = grant.devices
        else:
            added = tuple(uuid for uuid in client.devices if uuid not in grant.devices)
            self.account(grant, now)
            self.cover(grant, added)
            grant.forget_closing()
            grant.epoch = self.next_epoch()
            grant.announced = None
        grant.before = before
        for process in client.processes.values():
            process.wants = process.drained = False
            process.epoch = grant.epoch
        self._out.append(GrantCommand(client.id, grant.epoch, added, tuple(client.processes)))

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
        held = now - grant.began
        self.account(grant, now)
        client.last_ran = now
        client.mean_turn = held if client.mean_turn is None else 0.7 * client.mean_turn + 0.3 * held
        for uuid in grant.devices:
            self.devices[uuid].refusals = 0
        self.end_grant(grant)
        self._out.append(Free(client.id, grant.devices))
        if client.wants:
            self.enter_queue(client, now)

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
            client.gpu_seconds -= grant.began - before.grant.began
            for field in fields(grant):
                setattr(grant, field.name, getattr(before.grant, field.name))
        else:
            grant.devices = ()
            self.end_grant(grant)
            client.quanta -= 1
        epochs = dict(before.epochs)
        for number, process in client.processes.items():
            process.wants = number in before.wanting
            process.drained = number in before.drained
            process.epoch = epochs.get(number, process.epoch)
        if before.waiting_since is not None:
            self.enter_queue(client, before.waiting_since, client.ticket)


def policy_of(settings: Settings) -> Policy:
    """Raises Refused for an unknown name."""
    try:
        return POLICIES[settings.policy]()
    except KeyError:
        raise Refused(f"policy={settings.policy!r} is unknown: allowed are {', '.join(POLICIES)}") from None
