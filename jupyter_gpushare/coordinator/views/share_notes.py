"""Effect of a client's guaranteed share under the coordinator's settings."""

from __future__ import annotations

from ...core import Scheduler
from ...core.interface.settings import EXCLUSIVE
from ...core.queueing.policies.fair import Fair
from ...core.state.model import Client


def share_notes(scheduler: Scheduler, client: Client) -> list[str]:
    """Return a note for the client's user if turns, or all decisions, ignore the share."""
    settings, policy = scheduler.settings, scheduler.turns.table.policy
    policy_share = policy.share(client)
    if not client.quota.share or (policy_share and isinstance(policy, Fair)):
        return []
    colocated = " and among colocated clients" if policy_share and settings.sharing != EXCLUSIVE else ""
    return [
        f"share {client.quota.share:g} counts in placement{colocated}, not in turns: "
        f"the policy {settings.policy} ignores shares there (the policy fair does not)"
    ]
