"""Clients that run together on a device: who may, who must part, and how fast each of them may launch.

Fed with what clients have done (Progress, about once a second) and with who holds which device. Whether a packing pays
is found out by trial (`packing`); an offline client beside online ones is held to what they do not miss (`rates`);
where clients have shares, each has at least its own (`elastic`), unless its launches are too short to be in anybody's
way (`spacing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from .commands import SetRate
from .elastic import ElasticLimits
from .events import Progress
from .model import Client, Device
from .packing import Packing, Sample
from .rates import SAMPLES, WINDOW, AdaptiveRate, LaunchWindow
from .spacing import LaunchLength, spacing_ppm

_FADING = 0.95  # of measured work and blocks, a second later
_LEAST_REQUEST = 0.01  # of a device, for a client without a share beside others that have all of it
_ALONE_FOR = SAMPLES + 1.0  # seconds without company, after which its launch window shows it alone


@dataclass
class _Runner:
    """What a client has done."""

    window: LaunchWindow = field(default_factory=LaunchWindow)
    lengths: LaunchLength = field(default_factory=LaunchLength)
    alone: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))  # its rates without company
    last: Progress | None = None
    read_at: float = 0.0
    used: float = 0.0  # of its devices, lately
    load: float | None = None  # `used` while nothing else used its devices, exponentially weighted
    worked: float = 0.0  # seconds of work on its devices; each second counts as `_FADING` of the next one
    blocks: float = 0.0  # launched in the same time, weighted likewise
    shared: float = 0.0  # seconds in company, up to `company_since`
    company_since: float | None = None
    company_ended: float = float("-inf")

    @property
    def pace(self) -> float:
        """Blocks per second of work; 0: not known. Work is sampled, so seconds with little of it must count little."""
        return self.blocks / self.worked if self.worked and self.blocks else 0.0

    def shared_at(self, at: float) -> float:
        return self.shared + (max(0.0, at - self.company_since) if self.company_since is not None else 0.0)

    @property
    def rate_alone(self) -> float | None:
        """Blocks per window; of the means of neighbours, so that one odd window does not count for much."""
        return max(((one + other) / 2 for one, other in pairwise(self.alone)), default=None)


@dataclass
class _Place:
    """A device, and who has it."""

    packing: Packing = field(default_factory=Packing)
    elastic: ElasticLimits = field(default_factory=ElasticLimits)
    rates: dict[str, AdaptiveRate] = field(default_factory=dict)  # what an online client leaves to the offline ones
    members: tuple[Client, ...] = ()
    reported: dict[str, Sample] = field(default_factory=dict)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)  # by client: launch rate, spacing
    changed: dict[str, Client] = field(default_factory=dict)  # whose limits have, and nobody has said so

    @property
    def peers(self) -> tuple[Client, ...]:
        """The members whose packing is tried: those of the best class. The adaptive rate limits the others."""
        best = min((client.rank for client in self.members), default=0)
        return tuple(client for client in self.members if client.rank == best)


class Sharing:
    """Of all devices. `share` and `quantum`: what the policy in force says of a client."""

    def __init__(self, share: Callable[[Client], float], quantum: Callable[[Client], float]) -> None:
        self._share = share
        self._quantum = quantum
        self._places: dict[str, _Place] = {}
        self._runners: dict[str, _Runner] = {}
        self._said: dict[str, tuple[int, int]] = {}

    # --- who runs together

    def suit(self, device: Device, client: Client, members: Sequence[Client], now: float) -> bool:
        """Whether `client` may try to run beside `members`, whose memory fits beside its own."""
        if any(member.rank < client.rank for member in members):
            return True  # the adaptive rate limits it to what these leave
        peers = [member.id for member in members if member.rank == client.rank]
        return not peers or self._place(device).packing.may_join(client.id, peers, {}, 0, now)

    def loser(self, device: Device, now: float) -> Client | None:
        """Who is to go, because together they do worse than in turns."""
        place = self._place(device)
        if len(place.peers) < 2:
            return None
        loser = place.packing.verdict(now, _overhead(place.peers, self._quantum))
        return next((client for client in place.peers if client.id == loser), None)

    # --- what happens

    def progress(self, client: Client, event: Progress, now: float) -> None:
        runner = self._runner(client)
        at = now if event.at is None else min(event.at, now)
        if runner.last is not None and at <= runner.read_at:
            return  # its counters have not been read again
        if runner.last is not None:
            worked, blocks = event.gpu_seconds - runner.last.gpu_seconds, event.blocks - runner.last.blocks
            runner.used = max(0.0, worked) / (at - runner.read_at)
            if runner.company_since is None or self._is_measured_alone(client):
                runner.load = runner.used if runner.load is None else 0.7 * runner.load + 0.3 * runner.used
            runner.worked = _FADING * runner.worked + max(0.0, worked)
            runner.blocks = _FADING * runner.blocks + max(0, blocks)
        runner.last, runner.read_at = event, at
        runner.window.add(event.blocks, at)
        runner.lengths.add(event.launches, event.gpu_seconds)
        rate = runner.window.rate
        if rate and runner.company_since is None and at >= runner.company_ended + _ALONE_FOR:
            runner.alone.append(rate)
        held = client.gpu_seconds + (max(0.0, at - client.grant.began) if client.grant else 0.0)
        sample = Sample(
            client.id,
            event.launches,
            event.blocks,
            event.gpu_seconds,
            held,
            runner.shared_at(at),
            client.held.allocated,
            at,
        )
        for device in client.books:
            self._report(self._place(device), sample, now)

    def _is_measured_alone(self, client: Client) -> bool:
        """Return whether the client's company is all but stopped until its rate alone is known."""
        rates = (self._place(device).rates.get(client.id) for device in client.books)
        return any(rate is not None and rate.baseline is None for rate in rates)

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
        place.elastic.update({client.id: min(1.0, self._runner(client).used) for client in place.members}, now)
        launched = [self._runner(client).window.rate for client in place.members if client.rank]
        opportunistic = None if None in launched else sum(rate for rate in launched if rate)
        for client in place.members:
            if client.id in place.rates and not client.rank:
                place.rates[client.id].update(self._runner(client).window.rate, opportunistic, now, self._room(place))
        self._limit(place)

    def _room(self, place: _Place) -> float | None:
        """Blocks per WINDOW of offline members, for which the online ones seem to leave the device time."""
        loads = [self._runner(client).load for client in place.members if not client.rank]
        paces = [self._runner(client).pace for client in place.members if client.rank]
        if None in loads:
            return None
        if not all(paces):
            return inf
        left = 1.0 - sum(load for load in loads if load)
        return max(0.0, left) * WINDOW * sum(paces) / len(paces)

    def settle(self, device: Device, now: float) -> Iterator[SetRate]:
        """Who has the device may be others now; returns what changes in how fast clients may launch."""
        place = self._place(device)
        # Offline ones last, as if they had joined last: they are to go first.
        members = tuple(grant.client for grant in device.grants)
        if len(members) > 1:
            members = tuple(sorted(members, key=lambda client: client.rank))
        if members != place.members:
            self._members_changed(place, members, now)
        changed, place.changed = place.changed, {}
        for client in changed.values():
            yield from self._say(client)

    def _members_changed(self, place: _Place, members: tuple[Client, ...], now: float) -> None:
        before, place.members = place.members, members
        place.reported.clear()
        place.packing.together([client.id for client in place.peers], now)
        for client in {*before, *members}:
            self._note_company(client, now)
        for client in before:
            if client not in members:
                place.limits.pop(client.id, None)
                place.changed[client.id] = client
                place.elastic.remove(client.id)
                if rate := place.rates.get(client.id):
                    rate.update(0, None, now)  # its pause is no loss
        for client in members:
            if client not in before and (rate := place.rates.get(client.id)):
                rate.update(None, None, now)
        self._limit(place)

    def _note_company(self, client: Client, now: float) -> None:
        runner = self._runner(client)
        places = (self._place(device) for device in client.books)
        company = any(len(place.members) > 1 and client in place.members for place in places)
        if company and runner.company_since is None:
            runner.company_since = now
        elif not company and runner.company_since is not None:
            runner.shared += now - runner.company_since
            runner.company_since, runner.company_ended = None, now

    # --- how fast

    def _limit(self, place: _Place) -> None:
        """What each member may launch, by what is known now."""
        online = [client for client in place.members if not client.rank]
        offline = [client for client in place.members if client.rank]
        limits = dict.fromkeys((client.id for client in place.members), (0, 0))
        if online and offline:
            part = self._left_by(place, online) / len(offline)
            limits |= {client.id: (max(1, int(part)) if part < inf else 0, 0) for client in offline}
        peers = online or offline
        if len(peers) > 1 and any(self._share(client) for client in peers):
            limits |= {client.id: (0, ppm) for client, ppm in self._spacings(place, peers)}
        for client in place.members:
            if place.limits.get(client.id, (0, 0)) != limits[client.id]:
                place.limits[client.id] = limits[client.id]
                place.changed[client.id] = client

    def _left_by(self, place: _Place, online: list[Client]) -> float:
        """Blocks per second that the offline members may launch together."""
        left = inf
        for client in online:
            rate = place.rates.get(client.id)
            if rate is None:
                rate = place.rates[client.id] = AdaptiveRate(self._runner(client).rate_alone)
            left = left if rate.allowed is None else min(left, rate.allowed)
        return left

    def _spacings(self, place: _Place, peers: list[Client]) -> Iterator[tuple[Client, int]]:
        shares = {client.id: self._share(client) for client in peers}
        without = sum(not share for share in shares.values())
        rest = max(_LEAST_REQUEST, (1.0 - sum(shares.values())) / max(1, without))
        for client in peers:
            place.elastic.set(client.id, shares[client.id] or rest, 1.0)
        for client in peers:
            runner = self._runner(client)
            harmless = runner.lengths.passes(client.switching.cost) and runner.used < (shares[client.id] or rest)
            yield client, 0 if harmless else spacing_ppm(place.elastic.limit(client.id))

    def _say(self, client: Client) -> Iterator[SetRate]:
        """A client of several devices has one page per process: the tightest of its limits is there."""
        limits = [self._place(device).limits.get(client.id, (0, 0)) for device in client.books]
        rate = min((rate for rate, _ in limits if rate), default=0)
        spacing = min((ppm for _, ppm in limits if ppm), default=0)
        if self._said.get(client.id, (0, 0)) != (rate, spacing):
            self._said[client.id] = (rate, spacing)
            yield SetRate(client.id, rate, spacing)

    def forget(self, client: Client) -> None:
        """The client is over."""
        self._runners.pop(client.id, None)
        self._said.pop(client.id, None)
        for place in self._places.values():
            place.packing.forget(client.id)
            place.elastic.remove(client.id)
            place.rates.pop(client.id, None)
            place.reported.pop(client.id, None)
            place.limits.pop(client.id, None)

    # --- looking up

    def _place(self, device: Device) -> _Place:
        place = self._places.get(device.info.uuid)
        if place is None:
            place = self._places[device.info.uuid] = _Place()
        return place

    def _runner(self, client: Client) -> _Runner:
        runner = self._runners.get(client.id)
        if runner is None:
            runner = self._runners[client.id] = _Runner()
        return runner


def _overhead(clients: Sequence[Client], quantum: Callable[[Client], float]) -> float:
    """The fraction of time that switching between the clients would take in turns."""
    costs = sum(client.switching.cost for client in clients)
    return costs / (costs + sum(quantum(client) for client in clients))
