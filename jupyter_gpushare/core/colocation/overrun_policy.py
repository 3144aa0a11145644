"""Policy for overruns: the time that other clients wait for a turn that does not end, and the action after it.

The scheduler cannot force a client to drain, because only the client's process ends its work on the device. So the turn
goes on, and its closing as well. By setting, other clients may join the device, or the client's kernel is asked to
interrupt its cell.
"""

from __future__ import annotations

from ..interface.settings import INTERRUPT, JOIN, WAIT, Settings
from ..state.model import Grant


def overrun_deadline(grant: Grant, settings: Settings) -> float | None:
    """Return when other clients have waited long enough for the end of an overrun; None: no overrun, or no bound."""
    if grant.overrun_since is None or settings.overrun == WAIT:
        return None
    return grant.overrun_since + settings.overrun_patience


def admits_others(grant: Grant, settings: Settings, now: float) -> bool:
    """Return whether other clients whose memory fits beside the grant's client need not wait for the grant's end."""
    return settings.overrun == JOIN and _is_past_grace(grant, settings, now)


def should_interrupt(grant: Grant, settings: Settings, now: float) -> bool:
    """Return whether to interrupt the kernel, once for each turn.

    An eviction is not interrupted, because it does not depend on the cell.
    """
    if settings.overrun != INTERRUPT or grant.is_interrupted or grant.evicting_since is not None:
        return False
    return _is_past_grace(grant, settings, now)


def _is_past_grace(grant: Grant, settings: Settings, now: float) -> bool:
    ends = overrun_deadline(grant, settings)
    return ends is not None and ends <= now
