"""Poll of NVML for the use and the health of devices, in a background thread, because a call may hang."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from .device_health import DeviceHealth
from .nvml import Nvml

POLL_TIMEOUT_SECONDS = 5.0  # a device that falls off the bus may block every call of NVML for minutes

_T = TypeVar("_T")

log = logging.getLogger(__name__)


class BackgroundPoller(Generic[_T]):
    """Poller of one query at a time, whose result a later call takes. `query` must not raise."""

    def __init__(self, query: Callable[[], _T]) -> None:
        self._query = query
        self._requests = threading.Semaphore(0)
        self._results: deque[_T] = deque()
        self._requested_at: float | None = None
        self._is_closed = False
        # A daemon thread, because a query may hang for good and must not keep the program from its end.
        threading.Thread(target=self._run, name="background poll", daemon=True).start()

    def take_result(self, now: float) -> _T | None:
        """Return the result of the last query and start the next query; None while there is no result."""
        result = self._results.popleft() if self._results else None
        if result is not None or self._requested_at is None:
            self._requested_at = now
            self._requests.release()
        return result

    def seconds_pending(self, now: float) -> float:
        """Return the seconds since the start of the present query; 0 without one."""
        return 0.0 if self._requested_at is None or self._results else now - self._requested_at

    def close(self) -> None:
        self._is_closed = True
        self._requests.release()

    def _run(self) -> None:
        while self._requests.acquire() and not self._is_closed:
            self._results.append(self._query())


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
