"""Clients that run together on a device: who may, who must part, and how fast each of them may launch.

Fed with what clients have done (Progress, about once a second) and with who holds which device. Whether a packing pays
is found out by trial (`packing_trials`); how fast its members may launch, the `throttle` says.
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


@dataclass
class _DeviceState:
    """A device, and who has it."""

    throttle: Throttle
    packing: PackingTrials = field(default_factory=PackingTrials)
    members: tuple[Client, ...] = ()
    reported: dict[str, Sample] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[Client, ...]:
        """The members whose packing is tried."""
        return best_class(self.members)


class ColocationController:
    """Of all devices. `share` and `quantum`: what the policy in force says of a client."""

    def __init__(self, share: Callable[[Client], float], quantum: Callable[[Client], float]) -> None:
        self._share = share
        self._quantum = quantum
        self._device_states: dict[str, _DeviceState] = {}
        self._activities: defaultdict[str, Activity] = defaultdict(Activity)
        self._published_budgets: dict[str, LaunchBudget | None] = {}

    # --- who runs together

    def may_try(self, device: Device, client: Client, members: Sequence[Client], now: float) -> bool:
        """Whether `client` may try to run beside `members`, whose memory fits beside its own."""
        if any(member.service_rank < client.service_rank for member in members):
            return True  # the adaptive rate limits it to what these leave
        peers = [member.id for member in members if member.service_rank == client.service_rank]
        return not peers or self._device_state(device).packing.may_join(client.id, peers, now)

    def client_to_separate(self, device: Device, now: float) -> Client | None:
        """Who is to go, because together they do worse than in turns."""
        place = self._device_state(device)
        if len(place.peers) < 2:
            return None
        loser = place.packing.client_to_separate(now, _switch_overhead(place.peers, self._quantum))
        return next((client for client in place.peers if client.id == loser), None)

    # --- what happens

    def on_progress(self, client: Client, event: Progress, now: float) -> None:
        activity = self._activity(client)
        at = now if event.at is None else min(event.at, now)
        if not activity.add(event, at, self._is_measured_exclusively(client)):
            return  # its counters have not been read again
        held = client.gpu_seconds + (max(0.0, at - client.grant.granted_at) if client.grant else 0.0)
        sample = Sample(
            client.id,
            event.launches,
            event.blocks,
            event.gpu_seconds,
            held,
            activity.colocated_seconds_at(at),
            client.memory_use.allocated,
            at,
        )
        for device in client.device_bindings:
            self._add_sample(self._device_state(device), sample, now)

    def _is_measured_exclusively(self, client: Client) -> bool:
        """Return whether the client's company is all but stopped until its rate alone is known."""
        budgets = (
            budget
            for device in client.device_bindings
            for budget in self._device_state(device).throttle.budgets.values()
        )
        return any(budget.reason == MEASURING and client.id in budget.colocated_with for budget in budgets)

    def _add_sample(self, state: _DeviceState, sample: Sample, now: float) -> None:
        """A packing is looked at when all of its members have reported, or one of them again."""
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
        """Who has the device may be others now; returns what changes in how fast clients may launch."""
        place = self._device_state(device)
        # Offline ones last, as if they had joined last: they are to go first.
        members = tuple(grant.client for grant in device.grants)
        if len(members) > 1:
            members = tuple(sorted(members, key=lambda client: client.service_rank))
        before = place.members
        if members != before:
            self._on_members_changed(place, members, now)
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
        for client in {*before, *members}:
            places = (self._device_state(device) for device in client.device_bindings)
            company = any(len(place.members) > 1 and client in place.members for place in places)
            self._activity(client).set_colocated(company, now)
        state.throttle.update_budgets(members, now)

    def remove(self, client: Client) -> None:
        """The client is over."""
        self._activities.pop(client.id, None)
        self._published_budgets.pop(client.id, None)
        for place in self._device_states.values():
            place.packing.remove(client.id)
            place.reported.pop(client.id, None)

    # --- looking up

    def _device_state(self, device: Device) -> _DeviceState:
        place = self._device_states.get(device.info.uuid)
        if place is None:
            place = self._device_states[device.info.uuid] = _DeviceState(Throttle(self._activity, self._share))
        return place

    def _activity(self, client: Client) -> Activity:
        return self._activities[client.id]


def _switch_overhead(clients: Sequence[Client], quantum: Callable[[Client], float]) -> float:
    """The fraction of time that switching between the clients would take in turns."""
    costs = sum(client.switch_cost.total for client in clients)
    return costs / (costs + sum(quantum(client) for client in clients))
