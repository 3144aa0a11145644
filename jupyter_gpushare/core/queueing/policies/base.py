"""Base of all policies, with the methods that most policies share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from ...interface.settings import AUTO, MAX_QUANTUM_SECONDS, Settings
from ...state.model import Client, Device, Grant

_MIN_IDLE_SECONDS, _MAX_IDLE_SECONDS = 0.02, 5.0
SWITCH_OVERHEAD = 0.05  # part of the time that switching may cost under the quantum "auto"


class Policy:
    """Rule that orders waiting clients and sets the length of turns.

    The scheduler has the rest: classes of service, limits, locks, gangs and closing. Keys are compared among waiting
    clients. A client's key must not change while the client waits.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def devices_of(self, client: Client) -> Sequence[Device]:
        """Return the devices of the client that are under this policy."""
        bindings = client.device_bindings
        if len(bindings) < 2:
            return bindings
        return [device for device in bindings if device.policy is self]

    # --- order

    def key(self, client: Client) -> float:
        """Return the key of the client. The smallest key is first, and of equal keys that of the earliest client."""
        return 0.0

    def on_wait(self, client: Client, now: float) -> None:
        """Note that the client begins to wait."""

    # --- reading of a quota

    def share(self, client: Client) -> float:
        return client.quota.share

    def limit(self, client: Client) -> float:
        return client.quota.limit

    # --- length of turns

    def quantum(self, client: Client) -> float:
        """Return the seconds that a turn of `client` lasts while another client waits; `turn_end` may override it."""
        settings = self.settings
        if settings.time_quantum == AUTO:
            paying_seconds = client.switch_cost.total / SWITCH_OVERHEAD
            return min(max(paying_seconds, settings.min_quantum), MAX_QUANTUM_SECONDS)
        return float(settings.time_quantum)

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        """Return when `grant` ends because `head` waits; a waiting client must run by `starvation_deadline`."""
        return grant.work_starts_at + self.quantum(grant.client)

    def idle_release(self, client: Client) -> float:
        """Return the seconds without GPU work after which the client loses its turn to waiting clients.

        With "auto", the time is about the switch cost, which is never worse than twice the optimum (ski rental; Karlin
        et al., 1988).
        """
        if self.settings.idle_release == AUTO:
            return min(max(client.switch_cost.total, _MIN_IDLE_SECONDS), _MAX_IDLE_SECONDS)
        return float(self.settings.idle_release)

    # --- usage

    def charge(self, client: Client, seconds: float, now: float) -> None:
        """Charge the client for `seconds` with its devices that end at `now`."""

    def on_new_work(self, client: Client, pause: float, now: float, expected: float | None = None) -> None:
        """Note that the client begins other work than in its last turns, `pause` seconds after the last turn.

        `expected`: the seconds that the work is expected to take, by its last runs; None: the work never ran.
        """

    def add_work(self, client: Client, seconds: float, contended: float) -> None:
        """Add `seconds` to the work at hand, during `contended` of which another client waited."""

    def work_seconds(self, client: Client) -> float:
        """Return the seconds that the work at hand had in earlier turns, as far as the policy counts them."""
        return 0.0

    def expected_seconds_left(self, client: Client) -> float | None:
        """Return the seconds that the work at hand is expected to take from the last charge on; None: unknown."""
        return None

    def remove(self, client: Client) -> None:
        """Drop the state of the client, which has ended."""

    def take_over_state(self, other: Policy) -> None:
        """Add the state of an earlier policy, or of this policy with other settings, whose devices are here now."""
