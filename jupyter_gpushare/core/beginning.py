"""Beginning a turn: a grant, the adoption of what runs already, and the way back if a lock is refused."""

from __future__ import annotations

from dataclasses import fields, replace

from .closing import RETRIES, Closing
from .commands import Close
from .commands import Grant as GrantCommand
from .errors import IllegalEvent
from .model import Before, Client, Grant, Process
from .overruns import lets_in
from .settings import EXCLUSIVE, JOIN, LONGEST_QUANTUM
from .switching import SLOW_LINK


class Beginning(Closing):
    """Begins grants, over their books."""

    def begin(self, client: Client, now: float) -> None:
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
            # A lock taken over is an exclusive one.
            shares = self.settings.sharing != EXCLUSIVE or self.settings.overrun == JOIN
            grant.shared = shares and named is None and not client.queued_at_lock
            # Or a short quantum would be over before the memory is back, turn after turn.
            missing = client.part.allocated - client.part.resident if client.restores else 0
            grant.lead = grant.expected_lead = min(
                max(client.switching.restore, missing / SLOW_LINK) if missing else 0.0, LONGEST_QUANTUM
            )
            added = grant.devices
            self._join_overruns(grant, now)
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

    def _join_overruns(self, grant: Grant, now: float) -> None:
        """Those beside whom it begins have had their turns: they do not go on with them, but wait for the next one."""
        for uuid in grant.devices:
            for other in self.devices[uuid].grants:
                other.parting = other.parting or lets_in(other, self.settings, now)

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

    def take_back(self, grant: Grant, now: float) -> None:
        """Somebody else holds a lock of the devices just granted: all is as it was, and it is tried again soon."""
        client, before = grant.client, grant.before
        self.name_next(grant, None)
        if before is None:
            raise IllegalEvent(f"the turn of client {client.id} did not begin with a Grant")
        held = before.grant.devices if before.grant else ()
        for uuid in set(grant.devices) - set(held):
            device = self.devices[uuid]
            device.refused_until = now + self.settings.lock_retry * 2 ** min(device.refusals, RETRIES)
            device.yields = False
            device.refusals += 1
            device.grants.remove(grant)
            del grant.counted[uuid]
        if before.waiting_since is not None:
            client.wait_seconds -= grant.began - before.waiting_since
        if before.grant:
            for field in fields(grant):
                if field.name not in ("began", "lead", "counted", "earlier_work"):  # accounted for until now
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
