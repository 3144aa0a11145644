"""Who is next, and for how long. One file per policy; `POLICIES` is what an admin may choose from."""

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
