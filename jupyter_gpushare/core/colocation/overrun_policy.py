"""Turns that do not end: by setting, how long others wait for one, and what comes then.

A client that will not drain cannot be made to: only its process ends what it has on the device. So its turn goes on,
and closing it is tried on; but others may be let in beside it, or its kernel be asked to interrupt its cell.
"""

from __future__ import annotations

from ..interface.settings import INTERRUPT, JOIN, WAIT, Settings
from ..state.model import Grant


def overrun_deadline(grant: Grant, settings: Settings) -> float | None:
    """When others have waited for its end for long enough; None: it is no overrun, or is waited for however long."""
    if grant.overrun_since is None or settings.overrun == WAIT:
        return None
    return grant.overrun_since + settings.overrun_patience


def admits_others(grant: Grant, settings: Settings, now: float) -> bool:
    """Whether nobody need wait for it any more whose memory fits beside its client's."""
    return settings.overrun == JOIN and _is_past_grace(grant, settings, now)


def should_interrupt(grant: Grant, settings: Settings, now: float) -> bool:
    """Once a turn, and not while its memory leaves: that waits for nothing that its cell does."""
    if settings.overrun != INTERRUPT or grant.is_interrupted or grant.evicting_since is not None:
        return False
    return _is_past_grace(grant, settings, now)


def _is_past_grace(grant: Grant, settings: Settings, now: float) -> bool:
    ends = overrun_deadline(grant, settings)
    return ends is not None and ends <= now
