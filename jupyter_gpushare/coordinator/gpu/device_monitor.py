"""Poll of the driver once a second, for the use and the health of devices."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..host.background_poll import BackgroundPoller
from .device_health import DeviceHealth
from .nvml import Nvml

POLL_TIMEOUT_SECONDS = 5.0  # a device that falls off the bus may block every call of NVML for minutes

log = logging.getLogger(__name__)


class DeviceMonitor:
    """Health and use of devices from NVML, which is called in another thread because a call may hang."""

    def __init__(self, nvml: Nvml, health: DeviceHealth) -> None:
        self._nvml = nvml
        self._health = health
        self._is_unresponsive = False
        self._poller = BackgroundPoller(self._query) if nvml.handles[1] else None

    def poll(self, now: float) -> Iterable[tuple[str, str]]:
        """Return (UUID, failure) of each device whose failure has changed; an empty failure means that it works."""
        if self._poller is None:
            return self._health.poll()
        changes = self._poller.take_result(now)
        silent = self._poller.seconds_pending(now) > POLL_TIMEOUT_SECONDS
        if silent and not self._is_unresponsive:
            self._nvml.discard_samples()
            log.warning(
                "estimating the use of devices without knowing their health, because NVML has not answered for %.0f s",
                POLL_TIMEOUT_SECONDS,
            )
        elif self._is_unresponsive and not silent:
            log.warning("reading devices through NVML, which answers again")
        self._is_unresponsive = silent
        return changes or ()

    def close(self) -> None:
        if self._poller:
            self._poller.close()

    def _query(self) -> list[tuple[str, str]]:
        self._nvml.sample()
        return self._health.poll()
