"""Ending a turn: closing the gates, what happens if the client does not drain, and what is learnt when it has.

One process's work on the device may depend on a thread that now stands at the gate, so closing is retried.
"""

from __future__ import annotations

from .commands import Close, Command, Free, Limits, Overrun
from .grants import Grants
from .model import Client, Device, Grant, Process
from .settings import Settings
from .tuning import Tuner

RETRIES = 2  # how often the time to the next try doubles, where somebody else has a lock
_LONGEST_GAP = 0.2  # seconds


class Closing(Grants):
    """Closes grants, over their books."""

    def __init__(self, settings: Settings, devices: dict[str, Device], out: list[Command]) -> None:
        super().__init__(settings, devices, out)
        self.tuner = Tuner()  # of the settings, by what turns have cost

    def begin_closing(self, grant: Grant, now: float) -> None:
        if not grant.draining:
            grant.closing_since = now
            self.touch(grant.client)
            self.close(grant, now)

    def close(self, grant: Grant, now: float) -> None:
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

    def close_anew(self, client: Client) -> None:
        """Close gates that are closed, by an epoch of their own: once all have drained of that, nobody opens one any
        more by what was said before."""
        epoch = self.next_epoch()
        for process in client.processes.values():
            process.epoch = epoch
        self._out.append(Close(client.id, epoch, tuple(client.processes)))

    def _reopen(self, grant: Grant, processes: list[Process], step: bool = False) -> None:
        grant.epoch = self.next_epoch()
        self.let_run(grant, processes, step)

    def closed_for_nobody(self, grant: Grant, now: float) -> bool:
        """Whether the client wants to go on and nobody else waits: its next cell came while the last one drained."""
        allowance = grant.client.allowance
        return (
            grant.draining
            and not grant.parting
            and not grant.gate_open
            and not self.contended(grant)
            and grant.client.wants
            and not grant.client.suspended
            and not grant.client.evicted
            and (allowance is None or allowance.ends_at(grant.began) > now)
            and not grant.uncovered
        )

    def withdraw_closing(self, grant: Grant) -> None:
        grant.forget_closing()
        self._reopen(grant, grant.processes)

    def retry_closing(self, grant: Grant, now: float) -> None:
        """Not drained in time. If threads of the client stand at the gate, the work on the device may wait for them:
        let them through for a short slice and close again; after some tries, for growing slices, as an overrun. If
        those threads need further devices, the client waits for these as for any others.

        Ranks that wait for each other at every step would be caught in the midst of one again and again. So first only
        the very calls that stand at the gate are let through, and if some processes have drained, mostly only theirs:
        that is what the others wait for, and nothing new."""
        settings = self.settings
        grant.next_try = now + settings.drain_retry
        if (leaves_since := self.only_memory_leaves(grant, now)) is not None:
            self._report(grant, now, now - leaves_since >= settings.evicting_overrun_after)
            return
        if wanting := [p for p in grant.processes if p.wants and not p.evicting]:
            grant.tries += 1
            step = grant.tries <= settings.drain_steps
            beyond = grant.tries - settings.drain_steps - settings.drain_tries
            grant.reopen_until = now + (
                settings.drain_slice
                if beyond <= 0
                else min(2.0 ** min(beyond - 1, 10), self.policy.quantum(grant.client))
            )
            behind = [process for process in wanting if process.drained]
            self._reopen(grant, behind if step and behind and grant.tries % 4 else wanting, step)
        if grant.uncovered:
            self.enter_queue(grant.client, now, now)
        in_vain = grant.tries > settings.drain_steps + settings.drain_tries
        self._report(grant, now, in_vain or grant.closing_for(now) >= settings.overrun_after)

    def only_memory_leaves(self, grant: Grant, now: float) -> float | None:
        """Since when nothing on the device waits for anybody: all that has run there has finished. None: it has not."""
        if not all(process.drained or process.evicting for process in grant.client.processes.values()):
            grant.evicting_since = None
        elif grant.evicting_since is None:
            grant.evicting_since = now
        return grant.evicting_since

    def _report(self, grant: Grant, now: float, too_late: bool) -> None:
        if too_late and not grant.overrun and self.contended(grant):
            grant.overrun_since = now
            self._out.append(Overrun(grant.client.id, grant.epoch, grant.closing_for(now)))

    def slice_helped(self, grant: Grant, now: float) -> None:
        """A process has drained. If that was in a slice of others, then it needed them. When they wait for it in turn,
        there is no use in long patience; when all have drained, none in the rest of the slice."""
        if grant.reopen_until is None:
            return
        grant.tries = 0
        grant.alternating = True
        if all(process.drained or grant.has_open(process) for process in grant.client.processes.values()):
            self.close(grant, now)

    def finish(self, grant: Grant, now: float) -> None:
        """The turn is over: free the devices, and queue the client again if threads of it wait."""
        client = grant.client
        for process in client.processes.values():
            process.queued_at_lock = process.queued_at_lock and grant.shared
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
        self._leave_to_others(grant, now)
        if client.wants:
            self.enter_queue(client, now, now)
        switching = lead + grant.closing_for(now)
        client.switch_seconds += switching
        self.settings = self.tuner.turn_ended(self.settings, self.waited, switching, held - switching, now)
        self.policy.settings = self.settings
        self._tell_pace(client)

    def _leave_to_others(self, grant: Grant, now: float) -> None:
        """Others on this host wait for its devices, and look now and then whether they are free: for that long nobody
        here takes them. That is a small part of a turn, since one who only says to wait would cost us that much."""
        gap = min(self.policy.quantum(grant.client) / 10, _LONGEST_GAP)
        gap = max(gap, self.settings.lock_retry * (2**RETRIES + 1))
        for device in (self.devices[uuid] for uuid in grant.devices):
            if device.wanted_since is not None and not device.grants:
                device.refused_until, device.yields = now + gap, True

    def _tell_pace(self, client: Client) -> None:
        """Its processes know how long a turn is and when they count as idle; these may follow from measurements."""
        pace = (self.policy.quantum(client), self.policy.idle_release(client))
        if any(not 0.8 <= new / old <= 1.25 for new, old in zip(pace, client.pace, strict=True)):
            self._out.append(Limits(client.id))
            client.pace = pace
