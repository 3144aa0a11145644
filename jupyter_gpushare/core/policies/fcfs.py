"""First come, first served with a fixed quantum: NvShare's policy (Alexopoulos, "nvshare", 2022), the baseline.

Unlike NvShare, nothing is taken away while nobody waits.
"""

from __future__ import annotations

from typing import ClassVar

from .base import Policy


class FirstComeFirstServed(Policy):
    name: ClassVar[str] = "fcfs"
