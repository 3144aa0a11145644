"""Ending a turn: its permit is withdrawn, a client that does not drain is reported, and something is learnt at the end.

The processes drain and leave by themselves; where one process's work waits for a thread at the gate of another, they
let single calls through until all has drained (native/shim/agent/agent_step.c).
"""

from __future__ import annotations

from .commands import Command, Limits, Overrun
from .grants import FIRST_TURN, Grants
from .model import Client, Device, Grant
from .settings import Settings
from .tuning import Tuner

_GAP = 0.05  # seconds for which a device is left at least to clients that this coordinator does not know
_LONGEST_GAP = 0.2


class Closing(Grants):
    """Closes grants, over their books."""

    def __init__(
        self, settings: Settings, devices: dict[str, Device], out: list[Command], first_turn: int = FIRST_TURN
    ) -> None:
        super().__init__(settings, devices, out, first_turn)
        self.tuner = Tuner()  # of the settings, by what turns have cost

    def begin_closing(self, grant: Grant, now: float, since: float | None = None) -> None:
        """`since`: when its gate closed, if a process has closed it by itself."""
        if not grant.draining:
            grant.closing_since = now if since is None else max(min(since, now), grant.began)
            self.touch(grant.client)

    def closed_for_nobody(self, grant: Grant, now: float) -> bool:
        """Whether the client wants to go on and no other waits: its next cell came while the last one drained."""
        allowance = grant.client.allowance
        return (
            grant.draining
            and not grant.parting
            and not self.contended(grant)
            and grant.client.wants
            and not grant.client.suspended
            and not grant.client.evicted
            and (allowance is None or allowance.ends_at(grant.began) > now)
        )

    def withdraw_closing(self, grant: Grant) -> None:
        grant.forget_closing()
        self.touch(grant.client)

    def only_memory_leaves(self, grant: Grant, now: float) -> None:
        """Note since when nothing on the device waits for anything: all that has run there has finished."""
        if not all(process.evicting for process in grant.processes):
            grant.evicting_since = None
        elif grant.evicting_since is None:
            grant.evicting_since = now

    def late_at(self, grant: Grant) -> float:
        """Return when a closing that goes on is an overrun."""
        if grant.evicting_since is not None:
            return grant.evicting_since + self.settings.evicting_overrun_after
        return (grant.closing_since or 0.0) + self.settings.overrun_after

    def look_for_overrun(self, grant: Grant, now: float) -> None:
        if grant.draining and not grant.overrun and self.contended(grant) and now >= self.late_at(grant):
            grant.overrun_since = now
            self._out.append(Overrun(grant.client.id, grant.turn, grant.closing_for(now)))
            self.touch(grant.client)

    def finish(self, grant: Grant, now: float) -> None:
        """The turn is over: queue the client again if threads of it wait."""
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
        self.end_grant(grant)
        self._leave_to_others(grant, now)
        if client.wants:
            self.enter_queue(client, now)
        switching = lead + grant.closing_for(now)
        client.switch_seconds += switching
        self.settings = self.tuner.turn_ended(self.settings, self.waited, switching, held - switching, now)
        self.policy.settings = self.settings
        self._tell_pace(client)

    def _leave_to_others(self, grant: Grant, now: float) -> None:
        """Clients of other coordinators wait for its devices, and try now and then: for so long no client here takes
        them. That is a small part of a turn, since a client that only claims to wait would cost us that much."""
        gap = max(min(self.policy.quantum(grant.client) / 10, _LONGEST_GAP), _GAP)
        for device in (self.devices[uuid] for uuid in grant.devices):
            if device.wanted_since is not None and not device.grants:
                device.left_until = now + gap
                if device.next:
                    self.retract(device.next)

    def _tell_pace(self, client: Client) -> None:
        """Its processes know how long a turn is and when they count as idle; these may follow from measurements."""
        pace = (self.policy.quantum(client), self.policy.idle_release(client))
        if any(not 0.8 <= new / old <= 1.25 for new, old in zip(pace, client.pace, strict=True)):
            self._out.append(Limits(client.id))
            client.pace = pace
