"""Budgets of the clients that share one device, by all rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ..model import Client
from .activity import Activity
from .adaptive import Adaptive
from .budget import Budget
from .by_share import ByShare


class Rule(Protocol):
    """A reason to limit clients that share a device. No two rules limit the same client there."""

    def change(self, before: Sequence[Client], members: Sequence[Client], now: float) -> None:
        """From now on, `members` share the device."""

    def watch(self, members: Sequence[Client], now: float) -> None:
        """All members have reported since the last call, about a second ago."""

    def budgets(self, members: Sequence[Client]) -> dict[str, Budget]:
        """Return the budgets of the members that are to be limited."""

    def forget(self, client: str) -> None:
        """The client is gone."""


class Throttle:
    """`share`: the fraction of the device that the policy in force gives a client, or 0."""

    def __init__(self, activity: Callable[[Client], Activity], share: Callable[[Client], float]) -> None:
        self._rules: tuple[Rule, ...] = (Adaptive(activity), ByShare(activity, share))
        self.budgets: dict[str, Budget] = {}
        self._changed: dict[str, Client] = {}

    def change(self, before: Sequence[Client], members: Sequence[Client], now: float) -> None:
        for rule in self._rules:
            rule.change(before, members, now)
        self._settle(members, [*before, *members])

    def watch(self, members: Sequence[Client], now: float) -> None:
        for rule in self._rules:
            rule.watch(members, now)
        self._settle(members, members)

    def forget(self, client: str) -> None:
        self.budgets.pop(client, None)
        for rule in self._rules:
            rule.forget(client)

    def take_changed(self) -> list[Client]:
        """Return the clients whose budgets have changed since the last call."""
        changed, self._changed = self._changed, {}
        return list(changed.values())

    def _settle(self, members: Sequence[Client], clients: Sequence[Client]) -> None:
        before, self.budgets = self.budgets, {}
        for rule in self._rules:
            self.budgets |= rule.budgets(members)
        self._changed |= {one.id: one for one in clients if before.get(one.id) != self.budgets.get(one.id)}
