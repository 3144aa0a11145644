"""First come, first served with a fixed quantum and a fixed early release, as a baseline.

The policy is NvShare's (Alexopoulos, "nvshare", 2022), whose figures are the values of "auto" here. Unlike in NvShare,
a client keeps its devices while no other client waits.
"""

from __future__ import annotations

from typing import ClassVar

from ...interface.settings import AUTO, MAX_QUANTUM_SECONDS
from ...state.model import Client
from .base import Policy

_EARLY_RELEASE_SECONDS = 5.0


class FirstComeFirstServed(Policy):
    name: ClassVar[str] = "fcfs"

    def quantum(self, client: Client) -> float:
        quantum = self.settings.time_quantum
        return MAX_QUANTUM_SECONDS if quantum == AUTO else float(quantum)

    def idle_release(self, client: Client) -> float:
        release = self.settings.idle_release
        return _EARLY_RELEASE_SECONDS if release == AUTO else float(release)
