"""What every policy decides, and what most of them share."""

from __future__ import annotations

from typing import ClassVar

from ...interface.settings import AUTO, MAX_QUANTUM_SECONDS, Settings
from ...state.model import Client, Grant

_MIN_IDLE_SECONDS, _MAX_IDLE_SECONDS = 0.02, 5.0  # seconds


class Policy:
    """Who is next, and for how long. The scheduler does the rest: service classes, limits, locks, gangs, closing.

    Keys are compared among waiting clients. A client's key must not change while it waits.
    """

    name: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    # --- who is next

    def key(self, client: Client) -> float:
        """The smallest first; among equals whoever came first."""
        return 0.0

    def on_wait(self, client: Client, now: float) -> None:
        """The client begins to wait."""

    # --- how a quota is read

    def share(self, client: Client) -> float:
        return client.quota.share

    def limit(self, client: Client) -> float:
        return client.quota.limit

    # --- how long

    def quantum(self, client: Client) -> float:
        """Return the seconds that a turn of `client` lasts while another client waits; `turn_end` may override it."""
        settings = self.settings
        if settings.time_quantum == AUTO:
            pays = client.switch_cost.total / settings.switch_overhead
            return min(max(pays, settings.min_quantum), MAX_QUANTUM_SECONDS)
        return float(settings.time_quantum)

    def turn_end(self, grant: Grant, head: Client, starvation_deadline: float) -> float:
        """Return when `grant` ends because `head` waits; a waiting client must run by `starvation_deadline`."""
        return grant.work_starts_at + self.quantum(grant.client)

    def idle_release(self, client: Client) -> float:
        """Seconds without GPU work after which the client loses its turn to those who wait.

        With "auto" about as long as giving it up and getting it back costs, which is never worse than twice the optimum
        (ski rental; Karlin et al., 1988).
        """
        if self.settings.idle_release == AUTO:
            pays = client.switch_cost.total * self.settings.idle_factor
            return min(max(pays, _MIN_IDLE_SECONDS), _MAX_IDLE_SECONDS)
        return float(self.settings.idle_release)

    # --- what was used

    def charge(self, client: Client, seconds: float, now: float) -> None:
        """The client held its devices for `seconds` until `now`."""

    def on_new_work(self, client: Client, pause: float, now: float) -> None:
        """The client begins other work than what it had its last turns for, `pause` seconds after the last of them."""

    def add_work(self, client: Client, seconds: float, contended: float) -> None:
        """The client has had `seconds` more for the work at hand, during `contended` of which another client waited."""

    def work_seconds(self, client: Client) -> float:
        """Return the seconds that the work at hand had in earlier turns, as far as the policy counts them."""
        return 0.0

    def remove(self, client: Client) -> None:
        """The client is over."""

    def take_over_state(self, other: Policy) -> None:
        """Go on from what an earlier policy, or this one with other settings, knew."""
