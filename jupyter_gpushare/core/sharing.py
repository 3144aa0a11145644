"""Clients that run together on a device: who may, who must part, and how fast each of them may launch.

Fed with what clients have done (Progress, about once a second) and with who holds which device. Whether a packing pays
is found out by trial (`packing`); how fast its members may launch, the `throttle` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from .commands import SetBudget
from .events import Progress
from .model import Client, Device
from .packing import Packing, Sample
from .throttle.activity import Activity
from .throttle.budget import MEASURING, Budget, tightest
from .throttle.by_share import best_class
from .throttle.throttle import Throttle


@dataclass
class _Place:
    """A device, and who has it."""

    throttle: Throttle
    packing: Packing = field(default_factory=Packing)
    members: tuple[Client, ...] = ()
    reported: dict[str, Sample] = field(default_factory=dict)

    @property
    def peers(self) -> tuple[Client, ...]:
        """The members whose packing is tried."""
        return best_class(self.members)


class Sharing:
    """Of all devices. `share` and `quantum`: what the policy in force says of a client."""

    def __init__(self, share: Callable[[Client], float], quantum: Callable[[Client], float]) -> None:
        self._share = share
        self._quantum = quantum
        self._places: dict[str, _Place] = {}
        self._activities: defaultdict[str, Activity] = defaultdict(Activity)
        self._said: dict[str, Budget | None] = {}

    # --- who runs together

    def suit(self, device: Device, client: Client, members: Sequence[Client], now: float) -> bool:
        """Whether `client` may try to run beside `members`, whose memory fits beside its own."""
        if any(member.rank < client.rank for member in members):
            return True  # the adaptive rate limits it to what these leave
        peers = [member.id for member in members if member.rank == client.rank]
        return not peers or self._place(device).packing.may_join(client.id, peers, now)

    def loser(self, device: Device, now: float) -> Client | None:
        """Who is to go, because together they do worse than in turns."""
        place = self._place(device)
        if len(place.peers) < 2:
            return None
        loser = place.packing.verdict(now, _overhead(place.peers, self._quantum))
        return next((client for client in place.peers if client.id == loser), None)

    # --- what happens

    def progress(self, client: Client, event: Progress, now: float) -> None:
        activity = self._activity(client)
        at = now if event.at is None else min(event.at, now)
        if not activity.add(event, at, self._is_measured_alone(client)):
            return  # its counters have not been read again
        held = client.gpu_seconds + (max(0.0, at - client.grant.began) if client.grant else 0.0)
        sample = Sample(
            client.id,
            event.launches,
            event.blocks,
            event.gpu_seconds,
            held,
            activity.shared_at(at),
            client.held.allocated,
            at,
        )
        for device in client.books:
            self._report(self._place(device), sample, now)

    def _is_measured_alone(self, client: Client) -> bool:
        """Return whether the client's company is all but stopped until its rate alone is known."""
        budgets = (budget for device in client.books for budget in self._place(device).throttle.budgets.values())
        return any(budget.reason == MEASURING and client.id in budget.beside for budget in budgets)

    def _report(self, place: _Place, sample: Sample, now: float) -> None:
        """A packing is looked at when all of its members have reported, or one of them again."""
        members = {member.id for member in place.members}
        if sample.client not in members or len(members) == 1:
            place.packing.observe([sample], now)
            return
        if sample.client in place.reported:
            self._look(place, now)
        place.reported[sample.client] = sample
        if members <= set(place.reported):
            self._look(place, now)

    def _look(self, place: _Place, now: float) -> None:
        peers = {client.id for client in place.peers}
        place.packing.observe([sample for sample in place.reported.values() if sample.client in peers], now)
        place.reported.clear()
        place.throttle.watch(place.members, now)

    def settle(self, device: Device, now: float) -> Iterator[SetBudget]:
        """Who has the device may be others now; returns what changes in how fast clients may launch."""
        place = self._place(device)
        # Offline ones last, as if they had joined last: they are to go first.
        members = tuple(grant.client for grant in device.grants)
        if len(members) > 1:
            members = tuple(sorted(members, key=lambda client: client.rank))
        before = place.members
        if members != before:
            self._members_changed(place, members, now)
        for client in dict.fromkeys((*before, *members)):
            budget = tightest(
                found for at in client.books if (found := self._place(at).throttle.budgets.get(client.id))
            )
            if budget != self._said.get(client.id):
                self._said[client.id] = budget
                yield SetBudget(client.id, budget)

    def _members_changed(self, place: _Place, members: tuple[Client, ...], now: float) -> None:
        before, place.members = place.members, members
        place.reported.clear()
        place.packing.together([client.id for client in place.peers], now)
        for client in {*before, *members}:
            places = (self._place(device) for device in client.books)
            company = any(len(place.members) > 1 and client in place.members for place in places)
            self._activity(client).note_company(company, now)
        place.throttle.settle(members, now)

    def forget(self, client: Client) -> None:
        """The client is over."""
        self._activities.pop(client.id, None)
        self._said.pop(client.id, None)
        for place in self._places.values():
            place.packing.forget(client.id)
            place.reported.pop(client.id, None)

    # --- looking up

    def _place(self, device: Device) -> _Place:
        place = self._places.get(device.info.uuid)
        if place is None:
            place = self._places[device.info.uuid] = _Place(Throttle(self._activity, self._share))
        return place

    def _activity(self, client: Client) -> Activity:
        return self._activities[client.id]


def _overhead(clients: Sequence[Client], quantum: Callable[[Client], float]) -> float:
    """The fraction of time that switching between the clients would take in turns."""
    costs = sum(client.switching.cost for client in clients)
    return costs / (costs + sum(quantum(client) for client in clients))
