"""Control of colocations: the clients that may be colocated, the clients to separate, and the launch budgets.

The inputs are the work of clients (Progress, about once a second) and the grants of devices. `packing_trials` finds by
trial whether a packing pays, and `throttle` sets how fast its members may launch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..interface.commands import SetBudget
from ..interface.events import Progress
from ..interface.launch_budget import MEASURING, LaunchBudget, tightest
from ..state.model import Client, Device
from ..throttle.activity import Activity
from ..throttle.share_rule import best_class
from ..throttle.throttle import Throttle
from .packing_trials import PackingTrials, Sample

_FULL_LOAD = 0.8  # part of a turn with work, from which on a client leaves no time; the idle end of a turn counts


@dataclass
class _DeviceState:
    """State of a device and of the clients that have it."""

    throttle: Throttle
    packing: PackingTrials = field(default_factory=PackingTrials)
    members: tuple[Client, ...] = ()
    ranks: tuple[int, ...] = ()  # the members' `Client.service_rank`
    reported: dict[str, Sample] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[Client, ...]:
        """The members of the best class of service, whose packing is tried."""
        return best_class(self.members)


class ColocationController:
    """Control of all devices. `share` and `quantum` return what the policy in force gives a client."""

    def __init__(self, share: Callable[[Client], float], quantum: Callable[[Client], float]) -> None:
        self._share = share
        self._quantum = quantum
        self._device_states: dict[str, _DeviceState] = {}
        self._activities: defaultdict[str, Activity] = defaultdict(Activity)
        self._published_budgets: dict[str, LaunchBudget | None] = {}

    # --- colocations

    def may_try(self, device: Device, client: Client, members: Sequence[Client], now: float) -> bool:
        """Return whether `client` may try a colocation with `members`, whose memory leaves room for its own."""
        if any(member.service_rank < client.service_rank for member in members):
            return True  # the adaptive rule limits the client to what the members leave
        peers = [member.id for member in members if member.service_rank == client.service_rank]
        return not peers or self._device_state(device).packing.may_join(client.id, peers, now)

    def leave_time(self, members: Sequence[Client]) -> bool:
        """Return whether the members of the best class leave a part of the device's time in their turns."""
        loads = [self._activity(member).exclusive_load or 0.0 for member in best_class(members)]
        return sum(loads) < _FULL_LOAD

    def client_to_separate(self, device: Device, now: float) -> Client | None:
        """Return the client to separate, because the members do worse together than in turns."""
        state = self._device_state(device)
        if len(state.peers) < 2:
            return None
        client_id = state.packing.client_to_separate(now, _switch_overhead(state.peers, self._quantum))
        return next((client for client in state.peers if client.id == client_id), None)

    # --- reasons

    def launch_budget(self, client: Client) -> LaunchBudget | None:
        """Return the launch budget in force; None: the client is not limited."""
        return self._published_budgets.get(client.id)

    def failed_packing(self, client: Client, now: float) -> tuple[frozenset[str], float] | None:
        """Return the failed packing that keeps a waiting client from running beside others; see `PackingTrials`."""
        for device in client.device_bindings:
            state = self._device_state(device)
            members = [member.id for member in state.members if member.service_rank == client.service_rank]
            if failure := state.packing.failure(client.id, members, now):
                return failure
        return None

    def online_loss(self, client: Client) -> float | None:
        """Return the loss of the online clients that the client is colocated with, as a fraction; None: unknown."""
        losses = (self._device_state(device).throttle.online_loss() for device in client.device_bindings)
        return max((loss for loss in losses if loss is not None), default=None)

    # --- events

    def on_progress(self, client: Client, event: Progress, now: float) -> None:
        activity = self._activity(client)
        at = now if event.at is None else min(event.at, now)
        grant = client.grant
        granted_seconds = client.gpu_seconds + (max(0.0, at - grant.granted_at) if grant else 0.0)
        if not activity.add(event, at, granted_seconds, grant is not None, self._is_measured_exclusively(client)):
            return  # its counters have not been read again
        sample = Sample(
            client.id,
            event.launches,
            event.blocks,
            event.gpu_seconds,
            granted_seconds,
            activity.packed.seconds_at(at),
            client.memory_use.allocated,
            at,
            event.training_steps,
        )
        for device in client.device_bindings:
            self._add_sample(self._device_state(device), sample, now)

    def _is_measured_exclusively(self, client: Client) -> bool:
        """Return whether the clients colocated with `client` are all but stopped to measure its exclusive rate."""
        budgets = (
            budget
            for device in client.device_bindings
            for budget in self._device_state(device).throttle.budgets.values()
        )
        return any(budget.reason == MEASURING and client.id in budget.colocated_with for budget in budgets)

    def _add_sample(self, state: _DeviceState, sample: Sample, now: float) -> None:
        """Add a sample, and evaluate the packing when all members have reported, or one member has reported again."""
        members = {member.id for member in state.members}
        if sample.client not in members or len(members) == 1:
            state.packing.add_samples([sample], now)
            return
        if sample.client in state.reported:
            self._evaluate(state, now)
        state.reported[sample.client] = sample
        if members <= set(state.reported):
            self._evaluate(state, now)

    def _evaluate(self, state: _DeviceState, now: float) -> None:
        peers = {client.id for client in state.peers}
        state.packing.add_samples([sample for sample in state.reported.values() if sample.client in peers], now)
        state.reported.clear()
        state.throttle.update(state.members, now)

    def publish(self, device: Device, now: float) -> Iterator[SetBudget]:
        """Update the members of the device, and yield the launch budgets that have changed."""
        state = self._device_state(device)
        # Offline clients are last, as if they had joined last, because they are to be separated first.
        members = tuple(grant.client for grant in device.grants)
        if len(members) > 1:
            members = tuple(sorted(members, key=lambda client: client.service_rank))
        before, ranks = state.members, tuple(client.service_rank for client in members)
        if members != before or ranks != state.ranks:
            state.ranks = ranks
            self._on_members_changed(state, members, now)
        for client in dict.fromkeys((*before, *members)):
            budget = tightest(
                found
                for at in client.device_bindings
                if (found := self._device_state(at).throttle.budgets.get(client.id))
            )
            if budget != self._published_budgets.get(client.id):
                self._published_budgets[client.id] = budget
                yield SetBudget(client.id, budget)

    def _on_members_changed(self, state: _DeviceState, members: tuple[Client, ...], now: float) -> None:
        before, state.members = state.members, members
        state.reported.clear()
        state.packing.set_members([client.id for client in state.peers], now)
        for client in dict.fromkeys((*before, *members)):
            together = [self._device_state(device).members for device in client.device_bindings]
            others = [other for found in together if client in found for other in found if other is not client]
            activity = self._activity(client)
            activity.colocated.set(bool(others), now)
            activity.set_online(frozenset(other.id for other in others if not other.service_rank))
            activity.packed.set(any(other.service_rank <= client.service_rank for other in others), now)
        state.throttle.update_budgets(members, now)

    def remove(self, client: Client) -> None:
        """Drop the state of the client, which has ended."""
        self._activities.pop(client.id, None)
        self._published_budgets.pop(client.id, None)
        for state in self._device_states.values():
            state.packing.remove(client.id)
            state.reported.pop(client.id, None)

    # --- states

    def _device_state(self, device: Device) -> _DeviceState:
        state = self._device_states.get(device.info.uuid)
        if state is None:
            state = self._device_states[device.info.uuid] = _DeviceState(Throttle(self._activity, self._share))
        return state

    def _activity(self, client: Client) -> Activity:
        return self._activities[client.id]


def _switch_overhead(clients: Sequence[Client], quantum: Callable[[Client], float]) -> float:
    """Return the fraction of time that switching between the clients would take in turns."""
    costs = sum(client.switch_cost.total for client in clients)
    return costs / (costs + sum(quantum(client) for client in clients))
