"""What the driver says of devices, looked at once a second: how they are used, and whether they have failed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .devices import Nvml
from .health import Health
from .patience import Patient

PATIENCE = 5.0  # seconds; a device that falls off the bus may hold every call of NVML for minutes

log = logging.getLogger(__name__)


class Driver:
    """`nvml` is asked in another thread; without one there is nothing to ask."""

    def __init__(self, nvml: Nvml, health: Health) -> None:
        self._nvml = nvml
        self._health = health
        self._silent = False
        self._patient = Patient(self._ask) if nvml.handles[1] else None

    def look(self, now: float) -> Iterable[tuple[str, str]]:
        """(UUID, what is wrong with it by now, or nothing), for each device for which that has changed."""
        if self._patient is None:
            return self._health.look()
        changes = self._patient.answer(now)
        silent = self._patient.silent_for(now) > PATIENCE
        if silent and not self._silent:
            self._nvml.forget()
            log.warning("NVML does not answer: what devices do is estimated, and their health unknown, until it does")
        elif self._silent and not silent:
            log.warning("NVML answers again")
        self._silent = silent
        return changes or ()

    def close(self) -> None:
        if self._patient:
            self._patient.close()

    def _ask(self) -> list[tuple[str, str]]:
        self._nvml.look()
        return self._health.look()
