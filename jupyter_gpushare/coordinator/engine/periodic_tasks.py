"""Tasks of the coordinator that run once a second."""

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

INTERVAL_SECONDS = 1.0  # between the starts of two rounds
REPEAT_LOG_SECONDS = 3600.0  # until a lasting fault is logged again

_Key = TypeVar("_Key")
_T = TypeVar("_T")

log = logging.getLogger(__name__)


class PeriodicTasks:
    """Rounds of tasks, from the next iteration of the event loop until `stop`.

    A round runs in chunks, because messages about turns come first.
    """

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
        """Run all tasks once. At each `yield` the event loop handles messages, which may change any state."""
        coordinator = self._coordinator
        self._run("settings override", coordinator.settings_override.refresh)
        self._run("estimates", coordinator.page_sync.update_estimates, now)
        yield
        yield from self._each_runtime(coordinator.page_sync.write_pages)
        yield from self._each_runtime(coordinator.registry.remove_if_unconnected)
        yield from self._each_present(coordinator.process_handles, coordinator.read_page)
        yield
        self._run("device health", self._poll_devices, now)
        yield from self._each_runtime(self._update_client)
        self._run(
            "memory shortage",
            coordinator.page_sync.handle_memory_shortage,
            coordinator.process_handles.values(),
        )
        self._run(
            "state store",
            coordinator.restart_recovery.save_changed,
            coordinator.runtimes.values(),
            coordinator.scheduler.clients,
            now,
        )
        yield from self._each_runtime(lambda runtime: coordinator.usage.sample_client(runtime, self._loop.time()))
        self._run("usage", coordinator.usage.persist, now)
        yield
        self._run(
            "foreign processes",
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
            self._run("subscriptions", coordinator.subscriptions.schedule_publication)
        self._timer = self._loop.call_at(now + INTERVAL_SECONDS, self._start_round)

    def _run(self, name: str, task: Callable[..., object], *arguments: object) -> None:
        """Run a task, and log its exception, so that a bug in one task leaves the other tasks running."""
        try:
            task(*arguments)
        except Exception:
            if self._failures.count(name) == 1:
                log.exception("bug: %s; event log:\n%s", name, "\n".join(self._coordinator.scheduler.event_log()))

    def _each_runtime(self, task: Callable[[ClientRuntime], None]) -> Iterator[None]:
        return self._each_present(self._coordinator.runtimes, task)

    def _each_present(self, items: Mapping[_Key, _T], task: Callable[[_T], None]) -> Iterator[None]:
        """Run a task for each item that is present now and still present when its turn in the chunks comes."""

        def run_if_present(item: tuple[_Key, _T]) -> None:
            if items.get(item[0]) is item[1]:
                self._run(str(item[0]), task, item[1])

        yield from in_chunks(items.items(), run_if_present)
        yield

    def _poll_devices(self, now: float) -> None:
        for uuid, reason in self._coordinator.device_monitor.poll(now):
            if reason:
                log.warning("placing no new clients on device %s, which has failed: %s", uuid, reason)
            else:
                log.warning("using device %s again, which works again", uuid)
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
