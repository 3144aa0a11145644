"""What the driver says of devices, looked at once a second: how they are used, and whether they have failed."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ..host.background_poll import BackgroundPoller
from .device_health import DeviceHealth
from .nvml import Nvml

POLL_TIMEOUT_SECONDS = 5.0  # seconds; a device that falls off the bus may hold every call of NVML for minutes

log = logging.getLogger(__name__)


class DeviceMonitor:
    """`nvml` is asked in another thread; without one there is nothing to ask."""

    def __init__(self, nvml: Nvml, health: DeviceHealth) -> None:
        self._nvml = nvml
        self._health = health
        self._is_unresponsive = False
        self._poller = BackgroundPoller(self._query) if nvml.handles[1] else None

    def poll(self, now: float) -> Iterable[tuple[str, str]]:
        """(UUID, what is wrong with it by now, or nothing), for each device for which that has changed."""
        if self._poller is None:
            return self._health.poll()
        changes = self._poller.take_result(now)
        silent = self._poller.seconds_pending(now) > POLL_TIMEOUT_SECONDS
        if silent and not self._is_unresponsive:
            self._nvml.discard_samples()
            log.warning("NVML does not answer: what devices do is estimated, and their health unknown, until it does")
        elif self._is_unresponsive and not silent:
            log.warning("NVML answers again")
        self._is_unresponsive = silent
        return changes or ()

    def close(self) -> None:
        if self._poller:
            self._poller.close()

    def _query(self) -> list[tuple[str, str]]:
        self._nvml.sample()
        return self._health.poll()
