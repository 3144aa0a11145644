"""Policies, which order waiting clients and set the length of turns. `POLICIES` has the choices of the setting."""

from __future__ import annotations

from ...interface.settings import Settings
from .base import Policy
from .fair import BestEffort, BurstShare, Fair, FixedShare, Weighted
from .fcfs import FirstComeFirstServed
from .interactive import Interactive

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Interactive, Fair, BestEffort, FixedShare, BurstShare, Weighted, FirstComeFirstServed)
}


def policy_of(settings: Settings) -> Policy:
    return POLICIES[settings.policy](settings)


__all__ = ["POLICIES", "Policy", "policy_of"]
