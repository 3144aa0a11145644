"""Who is next, and for how long. One file per policy; `POLICIES` is what an admin may choose from."""

from __future__ import annotations

from .base import Policy
from .fcfs import FirstComeFirstServed

POLICIES: dict[str, type[Policy]] = {"fcfs": FirstComeFirstServed}

__all__ = ["POLICIES", "Policy"]
