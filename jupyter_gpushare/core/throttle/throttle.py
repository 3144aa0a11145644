"""Launch budgets of the clients that share one device, by the adaptive rule and the share rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..interface.launch_budget import LaunchBudget
from ..state.model import Client
from .activity import Activity
from .adaptive_rule import AdaptiveRule
from .share_rule import ShareRule


class ThrottleRule(Protocol):
    """A reason to limit clients that share a device. No two rules limit the same client there."""

    def update(self, members: Sequence[Client], now: float) -> None:
        """Take the reports of all members since the last call, about a second ago."""

    def budgets(self, members: Sequence[Client], now: float) -> dict[str, LaunchBudget]:
        """Return the budgets of the members to limit. From now on, the members share the device."""


class Throttle:
    """Budgets of one device. `share` returns the fraction that the policy in force gives a client, or 0."""

    def __init__(self, activity: Callable[[Client], Activity], share: Callable[[Client], float]) -> None:
        self._adaptive_rule = AdaptiveRule(activity)
        self._rules: tuple[ThrottleRule, ...] = (self._adaptive_rule, ShareRule(activity, share))
        self.budgets: dict[str, LaunchBudget] = {}

    def online_loss(self) -> float | None:
        """Return the measured loss of the online members; see `AdaptiveRule.online_loss`."""
        return self._adaptive_rule.online_loss()

    def update(self, members: Sequence[Client], now: float) -> None:
        for rule in self._rules:
            rule.update(members, now)
        self.update_budgets(members, now)

    def update_budgets(self, members: Sequence[Client], now: float) -> None:
        self.budgets = {client: budget for rule in self._rules for client, budget in rule.budgets(members, now).items()}
