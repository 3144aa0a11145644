"""Rule for clients with shares: a client may use its share of a device, and more while other time is free.

The limits are the elastic limits of GaiaGPU (Gu et al., "GaiaGPU: Sharing GPUs in Container Clouds", ISPA 2018). A
client's limit is between its request and the whole device. The parameters are GaiaGPU's, unless they are marked as
ours. Nothing is preempted: a lower limit applies to later launches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..interface.launch_budget import DEVICE_SECONDS, SHARE, SURPLUS, LaunchBudget
from ..state.model import Client
from .activity import Activity

TICK_SECONDS = 0.12  # between two updates
TICKS_PER_CHANGE = 30  # updates between two changes of limits
MAX_UTILISATION = 0.9  # GU_max: utilisation of the device up to which limits rise
FREE_MARGIN = 0.05 / 2  # free utilisation above which limits rise
INCREMENTS = 10  # a limit changes by a tenth of the request at a time
_MIN_ACTIVE_FRACTION = 0.01  # of the device; a client that uses less counts as inactive
_SLACK = 1e-9  # for rounding errors
_MIN_REQUEST = 0.01  # of a device, for a client without a share, colocated with clients whose shares are all of it


@dataclass
class _Entry:
    request: float
    limit: float
    used: float = 0.0  # seconds of the device since the last change
    active: bool = False  # in the interval before the last change


class ElasticLimits:
    """Limits of the clients that share one device, as fractions of its time."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._unused = 0.0  # seconds since the last change; negative if several clients had work at the same time
        self._since: float | None = None
        self._updated_at = 0.0

    def set_requests(self, requests: Mapping[str, float]) -> None:
        """Set the clients that share the device, with their requests.

        A new client, and a changed quota, reset all limits to the requests.
        """
        if requests.items() <= {client: entry.request for client, entry in self._entries.items()}.items():
            self._entries = {client: self._entries[client] for client in requests}
        else:
            self._entries = {client: _Entry(request, request) for client, request in requests.items()}

    def limit(self, client: str) -> float:
        """Return the fraction of device time that the client may use now. Raises KeyError for an unknown client."""
        return self._entries[client].limit

    def update(self, used: Mapping[str, float], now: float) -> None:
        """Update the limits from the use of the device since the last call.

        `used`: the fraction of the time in which each client had work on the device. Simultaneous work counts for each
        client. Call it every TICK_SECONDS or less often. Limits change after TICKS_PER_CHANGE ticks.
        """
        if self._since is None:
            self._since = self._updated_at = now
            return
        seconds, self._updated_at = now - self._updated_at, now
        for client, entry in self._entries.items():
            entry.used += max(0.0, used.get(client, 0.0)) * seconds
        self._unused += (1.0 - sum(max(0.0, part) for part in used.values())) * seconds
        interval = now - self._since
        if interval >= TICKS_PER_CHANGE * TICK_SECONDS * 0.99:
            self._change(self._unused / interval, interval)
            self._since, self._unused = now, 0.0

    def _change(self, unused: float, interval: float) -> None:
        free = unused - (1 - MAX_UTILISATION)
        woken = False
        for entry in self._entries.values():
            active = entry.used / interval > _MIN_ACTIVE_FRACTION
            woken = woken or (active and not entry.active)
            entry.active, entry.used = active, 0.0
        if free > FREE_MARGIN:
            for entry in self._entries.values():
                entry.limit = min(1.0, entry.limit + entry.request / INCREMENTS)
        elif free <= _SLACK:
            at_once = woken or unused < 0  # ours: a client that needs its share again gets it without ten steps
            for entry in self._entries.values():
                entry.limit = entry.request if at_once else max(entry.request, entry.limit - entry.request / INCREMENTS)


class ShareRule:
    """Shares of the members of the best class of service, which also get the time that others leave.

    `share` returns a client's share, or 0.
    """

    def __init__(self, activity: Callable[[Client], Activity], share: Callable[[Client], float]) -> None:
        self._activity = activity
        self._share = share
        self._limits = ElasticLimits()

    def update(self, members: Sequence[Client], now: float) -> None:
        self._limits.update({client.id: min(1.0, self._activity(client).used_fraction) for client in members}, now)

    def budgets(self, members: Sequence[Client], now: float) -> dict[str, LaunchBudget]:
        shares = {client.id: self._share(client) for client in best_class(members)}
        without = sum(not share for share in shares.values())
        if len(shares) < 2 or without == len(shares):
            shares.clear()
        rest = max(_MIN_REQUEST, (1.0 - sum(shares.values())) / max(1, without))
        requests = {client: share or rest for client, share in shares.items()}
        self._limits.set_requests(requests)
        budgets = {}
        for client, request in requests.items():
            limit = self._limits.limit(client)
            reason = SURPLUS if limit > request + _SLACK else SHARE
            if limit < 1.0:
                others = tuple(other for other in requests if other != client)
                budgets[client] = LaunchBudget(limit, DEVICE_SECONDS, reason, others)
        return budgets


def best_class(members: Sequence[Client]) -> tuple[Client, ...]:
    """Return the online members, or all members if none is online. The adaptive rule limits the offline members."""
    best = min((client.service_rank for client in members), default=0)
    return tuple(client for client in members if client.service_rank == best)
