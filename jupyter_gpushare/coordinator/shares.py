"""What a client's guaranteed share is good for, as the coordinator is set."""

from __future__ import annotations

from ..core import Scheduler
from ..core.model import Client
from ..core.policies.fair import Fair
from ..core.settings import EXCLUSIVE


def notes(scheduler: Scheduler, client: Client) -> list[str]:
    """What its user should know of it: that turns, or anything at all, do not go by it."""
    settings, policy = scheduler.settings, scheduler.turns.policy
    counts = policy.share(client)
    if not client.quota.share or (counts and isinstance(policy, Fair)):
        return []
    together = " and among clients that run at the same time" if counts and settings.sharing != EXCLUSIVE else ""
    return [
        f"share {client.quota.share:g} counts in placement{together}, not in turns: "
        f"the policy {settings.policy} heeds no shares there (fair does)"
    ]
