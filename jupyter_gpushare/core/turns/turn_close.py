"""End of turns: closing, overruns, measurements and charges at the end, and yields to other coordinators.

The processes drain and leave by themselves. Where the work of one process waits for a thread at the gate of another
process, the processes let single calls through until all have drained (native/shim/agent/agent_step.c).
"""

from __future__ import annotations

from ..interface.commands import ReportOverrun, UpdateQuota
from ..residency.residency_plan import has_no_room_in_turn
from ..state.model import Client, Grant
from ..throttle.activity import WINDOW_SECONDS
from .grant_table import GrantTable

_MIN_YIELD_SECONDS = 0.05  # in which a device is left to clients unknown to this coordinator
_MAX_YIELD_SECONDS = 0.2
# Part of the first window of an online client's turn that is lost beside a spilled client; simulated bursts lose 8 %.
_FIRST_LOSS = 0.07


class TurnCloser:
    """Closing of the grants in the table."""

    def __init__(self, table: GrantTable) -> None:
        self._table = table

    def start_closing(self, grant: Grant, now: float, since: float | None = None) -> None:
        """Start closing the grant. `since`: when its gate closed, if a process has closed it by itself."""
        if not grant.is_draining:
            grant.closing_since = now if since is None else max(min(since, now), grant.granted_at)
            self._table.mark_dirty(grant.client)

    def is_close_unneeded(self, grant: Grant, now: float) -> bool:
        """Return whether the client goes on and no other client waits: its next cell came during the drain."""
        limit = grant.client.time_limit
        return (
            grant.is_draining
            and not grant.is_separating
            and not self._table.has_contenders(grant)
            and grant.client.is_waiting_at_gate
            and not grant.client.suspended
            and not grant.client.evicted
            and not grant.client.moving_to
            and not any(has_no_room_in_turn(self._table.devices[uuid], grant.client) for uuid in grant.devices)
            and (limit is None or limit.ends_at(grant.granted_at) > now)
        )

    def cancel_closing(self, grant: Grant) -> None:
        grant.reset_closing()
        self._table.mark_dirty(grant.client)

    def update_eviction_phase(self, grant: Grant, now: float) -> None:
        """Note since when all work of the grant has finished, so that only memory leaves."""
        if not all(process.is_evicting for process in grant.processes):
            grant.evicting_since = None
        elif grant.evicting_since is None:
            grant.evicting_since = now

    def overrun_at(self, grant: Grant) -> float:
        """Return when a closing that goes on is an overrun."""
        settings = self._table.policies.settings_of(grant.client)
        if grant.evicting_since is not None:
            return grant.evicting_since + settings.evicting_overrun_after
        return (grant.closing_since or 0.0) + settings.overrun_after

    def update_overrun(self, grant: Grant, now: float) -> None:
        if (
            grant.is_draining
            and not grant.is_overrun
            and self._table.has_contenders(grant)
            and now >= self.overrun_at(grant)
        ):
            grant.overrun_since = now
            self._table.commands.append(ReportOverrun(grant.client.id, grant.turn, grant.closing_seconds(now)))
            self._table.mark_dirty(grant.client)

    def finish_turn(self, grant: Grant, now: float) -> None:
        """End the turn, and queue the client again if threads of it wait."""
        client = grant.client
        duration, restore_seconds = now - grant.granted_at, grant.restore_seconds if grant.has_restored else 0.0
        if grant.is_restoring and not grant.has_restored:
            restore_seconds = duration  # at least, so that the next turn is long enough
        self.charge_return(grant, restore_seconds, now)
        self._charge_colocation(grant, duration, now)
        client.switch_cost.add_restore(restore_seconds)
        if grant.max_restore_seconds or grant.has_restored:
            client.restores_memory = grant.has_restored or grant.is_restoring
        self._table.charge_time(grant, now)
        if grant.closing_since is not None:
            drained = now if grant.evicting_since is None else grant.evicting_since
            client.switch_cost.add_drain(drained - grant.closing_since, now - drained)
        if client.time_limit and (grant.follows_other_client or restore_seconds):
            # Turns in a row without other clients move nothing, and would be short ones at the next switch.
            cost = max(client.switch_cost.total, restore_seconds)
            client.time_limit.resize(self._table.policies.policy_of(client).quantum(client), cost)
        client.last_turn_ended_at = now
        client.peak_bytes = (client.peak_bytes[1], client.memory_use.allocated)
        client.mean_turn = duration if client.mean_turn is None else 0.7 * client.mean_turn + 0.3 * duration
        self._table.remove_grant(grant)
        self._yield_devices(grant, now)
        if client.is_waiting_at_gate:
            self._table.enter_queue(client, now)
        client.switch_seconds += restore_seconds + grant.closing_seconds(now)
        self._publish_timing(client)

    def charge_return(self, grant: Grant, restore_seconds: float, now: float) -> None:
        """Charge the wait and the restore at the beginning of the turn to the budget of an online client, once."""
        if grant.return_wait is not None:
            grant.client.takeover_budget.spend(grant.return_wait + restore_seconds, now, grant.is_return)
            grant.return_wait = None

    def _charge_colocation(self, grant: Grant, duration: float, now: float) -> None:
        """Charge the first seconds of an online turn beside a spilled client to the budget of the online client.

        The adaptive rule charges what it measures, which is nothing at the beginning of a turn.
        """
        limited = (client for uuid in grant.devices for client in self._table.devices[uuid].limited_clients.values())
        if not grant.client.service_rank and any(client.grant for client in limited):
            lost = _FIRST_LOSS * min(duration, WINDOW_SECONDS)
            grant.client.takeover_budget.spend(lost, now, is_return=False)

    def _yield_devices(self, grant: Grant, now: float) -> None:
        """Leave the grant's devices to waiting clients of other coordinators, which try to enter at intervals.

        No client here takes the devices in the meantime. The time is a small part of a turn, because a client that only
        pretends to wait would cost this time as well.
        """
        quantum = self._table.policies.policy_of(grant.client).quantum(grant.client)
        yield_seconds = max(min(quantum / 10, _MAX_YIELD_SECONDS), _MIN_YIELD_SECONDS)
        for device in (self._table.devices[uuid] for uuid in grant.devices):
            if device.lock_contended_since is not None and not device.grants:
                device.yielded_until = now + yield_seconds
                if device.next_client:
                    self._table.withdraw_permit(device.next_client)

    def _publish_timing(self, client: Client) -> None:
        """Publish the client's quantum and idle release again if measurements have changed them by a quarter."""
        policy = self._table.policies.policy_of(client)
        timing = (policy.quantum(client), policy.idle_release(client))
        if any(not 0.8 <= new / old <= 1.25 for new, old in zip(timing, client.published_timing, strict=True)):
            self._table.commands.append(UpdateQuota(client.id))
            client.published_timing = timing
