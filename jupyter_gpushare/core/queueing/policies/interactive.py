"""Policy under which short cells overtake long cells, although no length of a cell is known: the default.

Clients are ordered by a sum of two terms, both in seconds over the client's weight:

* The client's virtual clock (see `virtual_clocks`) makes clients fair to each other over time.
* The time that the work at hand has had, up to `MAX_WORK_SECONDS`, makes short cells fast. The term is that of
  foreground-background scheduling, least attained service first (Rai et al., SIGMETRICS'03; for clusters
  Tiresias, Gu et al., NSDI'19). A cell that ran before is expected to take as long as it did then. The time that
  such a cell has left takes the place of the time that it has had (shortest remaining time first). Once the cell takes
  longer, the time that it has had counts again.

Use of a device without other contenders is free. The clock of a client that comes later begins where the first
client's is. Other work, such as the next cell, starts from zero. Only time for which other clients waited is
carried over to other work, less the pause before it. So cutting long work into many cells gains nothing. Time for which
another user waited is carried over to the work of all clients of the user. So dividing work among many clients gains
nothing either.

A client with a smaller sum preempts a turn after the turn has paid for its switch. The difference must be as large as
the time that the preempting work has had already, up to a quantum. So new work starts at once, while two long cells
take turns of a quantum.

A client's `share` is a floor: the client gets that fraction of the time while it contends. Users get equal parts of the
time that no share guarantees. A user's clients that contend for the same device divide the user's part of it: five
notebooks get no more than one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from ...interface.settings import Settings
from ...state.model import Client, Device, Grant
from .base import Policy
from .virtual_clocks import VirtualClocks

MAX_WORK_SECONDS = 600.0  # all work that has had more counts as equally long
_MIN_WEIGHT = 1e-3  # of a client without a share, where shares guarantee the whole device


@dataclass
class _WorkAtHand:
    """Time that a client has had for the work at hand, in seconds over its weight."""

    seconds: float = 0.0
    contended: float = 0.0  # the part of `seconds` while another client waited
    carried: float = 0.0  # the part of `seconds` of earlier work
    expected_end: float = 0.0  # `seconds` at the expected end of the work; 0: unknown

    def expected_left(self, seconds: float) -> float:
        """Return the time that the work is expected to have left after `seconds`; 0: none, or unknown."""
        return max(0.0, self.expected_end - seconds)

    def rank(self) -> float:
        """Return the time by which the work is ordered."""
        left = self.expected_left(self.seconds)
        return min(self.carried + left if left else self.seconds, MAX_WORK_SECONDS)


@dataclass
class _UserWork:
    """Time that all clients of a user have had on a device while another user contended for it, less pauses since."""

    contended: float = 0.0
    ended: float = 0.0  # the end of the time that was counted last


class Interactive(VirtualClocks):
    name: ClassVar[str] = "interactive"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._work: dict[str, _WorkAtHand] = {}
        self._user_work: dict[tuple[str, str], _UserWork] = {}  # by device and user

    def weight(self, client: Client) -> float:
        """Return the client's part of the time, as a multiple of the mean part of a contender.

        The client gets its guaranteed `share`, and a part of the time that no share guarantees. All users with
        contenders get equal parts of that time, and divide them among their contenders.
        """
        contention = max(
            (device.contention for device in self.devices_of(client)),
            key=lambda contention: contention.count,
            default=None,
        )
        if contention is None or not contention.count:
            return 1.0
        guaranteed = self.share(client) / max(1.0, contention.shares)
        left = max(0.0, 1.0 - contention.shares)
        equal = left / len(contention.user_counts) / max(1, contention.count_of_user(client.user))
        return max(contention.count * (guaranteed + equal), _MIN_WEIGHT)

    def key(self, client: Client) -> float:
        return self.clock(client) + self._work_of(client).rank()

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        client = grant.client
        quantum = self.quantum(client)
        base = grant.work_starts_at + quantum
        weight = self.weight(client)
        ahead = self.key(head) + min(quantum / weight, self._work_of(head).seconds) - self.clock(client)
        work = self._work_of(client)
        seconds = work.seconds - grant.earlier_work / weight
        advance = _time_to_advance(ahead, seconds)
        if left := work.expected_left(seconds):
            # Until the expected end, the sum of the clock and the time that is left stays the same.
            advance = max(advance, left) if min(work.carried + left, MAX_WORK_SECONDS) <= ahead else 0.0
        overtaken = grant.work_starts_at + weight * advance
        paying_at = grant.work_starts_at + max(self.settings.min_quantum, client.switch_cost.total)
        if overtaken < base:
            return max(overtaken, min(paying_at, base))
        return max(base, min(overtaken, starvation_deadline))

    def on_new_work(self, client: Client, pause: float, now: float, expected: float | None = None) -> None:
        work = self._work_of(client)
        carried = max(0.0, work.contended - pause)
        for device in self.devices_of(client):
            user_work = self._user_work_of(device, client)
            # While another client of the user contends for the device, there is no pause.
            if device.contention.count_of_user(client.user) == (client.contending_shares is not None):
                user_work.contended = max(0.0, user_work.contended - (now - user_work.ended))
                user_work.ended = now
            carried = max(carried, user_work.contended)
        work.seconds = work.contended = work.carried = carried
        work.expected_end = carried + expected / self.weight(client) if expected else 0.0

    def charge(self, client: Client, seconds: float, now: float) -> None:
        super().charge(client, seconds, now)
        for device in self.devices_of(client):
            self._user_work_of(device, client).ended = now

    def add_work(self, client: Client, seconds: float, contended: float) -> None:
        work, weight = self._work_of(client), self.weight(client)
        work.seconds += seconds / weight
        work.contended += contended / weight
        for device in self.devices_of(client):
            if len(device.contention.user_counts) > 1:
                self._user_work_of(device, client).contended += contended / weight

    def work_seconds(self, client: Client) -> float:
        return self._work_of(client).seconds

    def expected_seconds_left(self, client: Client) -> float | None:
        work = self._work_of(client)
        return work.expected_left(work.seconds) * self.weight(client) or None

    def remove(self, client: Client) -> None:
        super().remove(client)
        self._work.pop(client.id, None)

    def take_over_state(self, other: Policy) -> None:
        super().take_over_state(other)
        if isinstance(other, Interactive):
            self._work = {name: replace(work) for name, work in other._work.items()} | self._work
            self._user_work = {key: replace(work) for key, work in other._user_work.items()} | self._user_work

    def _work_of(self, client: Client) -> _WorkAtHand:
        work = self._work.get(client.id)
        if work is None:
            work = self._work[client.id] = _WorkAtHand()
        return work

    def _user_work_of(self, device: Device, client: Client) -> _UserWork:
        key = (device.info.uuid, client.user)
        user_work = self._user_work.get(key)
        if user_work is None:
            user_work = self._user_work[key] = _UserWork()
        return user_work


def _time_to_advance(ahead: float, work: float) -> float:
    """Return the time, in seconds over a weight, in which the sum of a clock and the work at hand advances by `ahead`.

    `work`: the time that the work at hand has had before.
    """
    time = (ahead - min(work, MAX_WORK_SECONDS)) / 2.0  # both advance
    return time if work + time <= MAX_WORK_SECONDS else ahead - MAX_WORK_SECONDS
