"""What is looked at once a second, whatever happens: what nobody said, what is used, what is to be kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from ...core.interface.settings import EXCLUSIVE
from ..clients.client_runtime import ClientRuntime
from ..host.chunked_work import ChunkedWork, in_chunks
from ..transport.rate_limits import WindowCounter

if TYPE_CHECKING:
    from .coordinator import Coordinator

INTERVAL_SECONDS = 1.0  # seconds
REPEAT_LOG_SECONDS = 3600.0  # seconds until a fault that lasts is logged again

_Key = TypeVar("_Key")
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class PeriodicTasks:
    """Of a coordinator, from the next turn of its event loop on until `stop`. A little at a time: turns come first."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._loop = asyncio.get_running_loop()
        self._failures = WindowCounter(REPEAT_LOG_SECONDS, self._loop.time)
        self._timer: asyncio.Handle = self._loop.call_later(0, self._start_round)
        self._work: ChunkedWork | None = None

    def stop(self) -> None:
        self._timer.cancel()
        if self._work:
            self._work.cancel()

    def _start_round(self) -> None:
        self._work = ChunkedWork(self._round(self._loop.time()))

    def _round(self, now: float) -> Iterator[None]:
        """After each, whatever else is to be done comes first, and may change anything."""
        coordinator = self._coordinator
        self._run("the settings that are kept", coordinator.settings_override.refresh)
        self._run("what changes by itself", coordinator.page_sync.update_estimates, now)
        yield
        yield from self._each_runtime(coordinator.page_sync.write_pages)
        yield from self._each_runtime(coordinator.registry.remove_if_unconnected)
        yield from self._each_present(coordinator.process_handles, coordinator.read_page)
        yield
        self._run("what the driver says", self._poll_devices, now)
        yield from self._each_runtime(self._update_client)
        self._run(
            "what there is no room for",
            coordinator.page_sync.handle_memory_shortage,
            coordinator.process_handles.values(),
        )
        self._run(
            "what is remembered",
            coordinator.restart_recovery.save_changed,
            coordinator.runtimes.values(),
            coordinator.scheduler.clients,
            now,
        )
        yield from self._each_runtime(lambda runtime: coordinator.usage.sample_client(runtime, self._loop.time()))
        self._run("usage", coordinator.usage.persist, now)
        yield
        self._run(
            "programs outside",
            coordinator.foreign_processes.sample,
            coordinator.scheduler.devices,
            coordinator.process_handles.values(),
        )
        yield
        self._run(
            "utilisation",
            coordinator.utilisation.sample,
            coordinator.scheduler,
            coordinator.runtimes.values(),
            self._loop.time(),
        )
        if coordinator.runtimes:
            self._run("followers", coordinator.subscriptions.schedule_publication)
        self._timer = self._loop.call_at(now + INTERVAL_SECONDS, self._start_round)

    def _run(self, what: str, look: Callable[..., object], *at: object) -> None:
        """One at fault is not to harm the others."""
        try:
            look(*at)
        except Exception:
            if self._failures.count(what) == 1:
                log.exception("bug: %s; story:\n%s", what, "\n".join(self._coordinator.scheduler.event_log()))

    def _each_runtime(self, look: Callable[[ClientRuntime], None]) -> Iterator[None]:
        return self._each_present(self._coordinator.runtimes, look)

    def _each_present(self, those: Mapping[_Key, _T], look: Callable[[_T], None]) -> Iterator[None]:
        """Those that are there now, but for those that have gone by then."""

        def look_at(item: tuple[_Key, _T]) -> None:
            if those.get(item[0]) is item[1]:
                self._run(str(item[0]), look, item[1])

        yield from in_chunks(those.items(), look_at)
        yield

    def _poll_devices(self, now: float) -> None:
        for uuid, reason in self._coordinator.device_monitor.poll(now):
            log.warning("device %s: %s", uuid, reason or "works again")
            self._coordinator.set_device_failure(uuid, reason)

    def _update_client(self, runtime: ClientRuntime) -> None:
        coordinator = self._coordinator
        coordinator.page_sync.read_memory(runtime)
        if coordinator.scheduler.settings.sharing != EXCLUSIVE and (
            progress := coordinator.progress_reports.progress_event(runtime)
        ):
            coordinator.dispatch(progress)
        if runtime.may_prefetch:
            coordinator.page_sync.publish_prefetch(runtime)
