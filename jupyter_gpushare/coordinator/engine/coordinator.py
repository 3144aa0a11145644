"""Coordinator, which constructs, connects and closes the parts of the engine.

The coordinator also orders the periodic tasks, puts changed settings into force, builds snapshots and queries history
and usage.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.base.device_info import DeviceInfo
from ...core.base.errors import Refused
from ...core.interface import events as ev
from ...core.interface.settings import EXCLUSIVE
from ...wire import address
from ..clients.client_runtime import ClientRuntime
from ..clients.page_events import ProgressReports
from ..clients.process_counters import ProcessCounters
from ..config.live_settings import LiveSettings
from ..config.settings_override import SettingsOverrideFile
from ..gpu import device_health, nvml, simulated_driver
from ..gpu.device_monitor import DeviceMonitor
from ..host import device_locks
from ..monitoring.device_utilisation import UtilisationSampler
from ..monitoring.foreign_processes import ForeignProcesses
from ..monitoring.history import History
from ..monitoring.host_backing import HostBackingSampler
from ..monitoring.usage import UsageService
from ..storage.audit_log import AuditLog
from ..storage.state_store import StateStore, store_path
from ..transport.connection import refusal_counts
from ..views import launch_limits, snapshot
from ..views.progress_fields import StepCounts
from ..views.subscriptions import SnapshotSteps, SnapshotSubscriptions
from .client_registry import ClientRegistry
from .command_executor import CommandExecutor
from .event_dispatcher import EventDispatcher
from .lock_contention import LockContention
from .move_executor import MoveExecutor
from .page_reader import PageReader
from .page_sync import PageSync
from .periodic_tasks import PeriodicTasks
from .restart_recovery import RestartRecovery
from .state import CoordinatorState

log = logging.getLogger(__name__)


class Coordinator:
    """Parts of a running coordinator, and what needs several of them. All methods run on one event loop."""

    def __init__(self, settings: LiveSettings, socket_path: str, directory: Path | None = None) -> None:
        """Find the devices and start the periodic tasks.

        `directory` is the directory of the state that outlives the coordinator; None: this user's state directory.
        """
        directory = directory or address.state_directory()
        self.audit = AuditLog(directory)
        self.settings_override = SettingsOverrideFile(socket_path)
        live = self.settings_override.restore(settings)
        self.nvml = nvml.Nvml()
        found = simulated_driver.devices() if settings.traits.simulate else self.nvml.devices()
        self.nvml.sample()
        health = device_health.DeviceHealth(*((None, {}) if settings.traits.simulate else self.nvml.handles))
        self.device_monitor = DeviceMonitor(self.nvml, health)
        loop = asyncio.get_running_loop()
        scheduler = live.make_scheduler(found, self.nvml.distance)
        self.state = state = CoordinatorState(scheduler, live, socket_path, loop.time, loop.time())
        if settings.traits.simulate and (fault := simulated_driver.fault()):
            state.problems.append(f"there are no simulated devices: {fault}")
        self.dispatcher = EventDispatcher(state)
        dispatch = self.dispatcher.dispatch
        self.subscriptions = SnapshotSubscriptions(self.build_snapshot, state.client_owners)
        self.host_backing = HostBackingSampler(scheduler, state.runtimes)
        self.page_sync = PageSync(state, dispatch, self.host_backing)
        self.page_reader = PageReader(state, dispatch, self.page_sync)
        self.moves = MoveExecutor(
            scheduler.devices, state.runtimes, self.host_backing, self.nvml, dispatch, self.dispatcher.enqueue
        )
        self.executor = CommandExecutor(
            state.runtimes,
            self.dispatcher.enqueue,
            self.page_sync.write_quota,
            self.page_sync.publish_prefetch,
            self.audit,
            self.moves,
        )
        self.lock_contention = LockContention(scheduler.devices, dispatch)
        self.state_store = StateStore(store_path(socket_path, directory), loop.call_soon_threadsafe)
        self.restart_recovery = RestartRecovery(self.state_store, state.now)
        self.usage = UsageService(scheduler, self.state_store, settings.traits.usage_kept, state.now)
        self.registry = ClientRegistry(
            state,
            dispatch,
            self.page_sync,
            self.restart_recovery,
            self._on_client_removing,
            self.subscriptions.schedule_publication,
        )
        self.progress_reports = ProgressReports()
        self.step_counts = StepCounts()
        self.utilisation = UtilisationSampler(self.nvml)
        self.foreign_processes = ForeignProcesses(self.nvml)
        self.history = History(state.now)
        self.dispatcher.connect(
            self.executor,
            [
                self._record_history,
                self.usage.on_client_events,
                self.dispatcher.schedule_deadline,
                lambda _: self.lock_contention.update(),
                self.subscriptions.schedule_publication,
            ],
        )
        for info in found:
            self._add_device(info)
        if unmet := scheduler.placement_adapter.placement.unmet_guarantees:
            log.error("not keeping the guarantees of tenants, which this host has no devices for: %s", unmet)
        for problem in self._unknown_devices():
            log.error("%s", problem)
        self._periodic_tasks = PeriodicTasks(self._run_periodic_tasks, scheduler.event_log)

    def close(self) -> None:
        """Stop the timers and close all pages and locks; clients run on and connect to the next coordinator."""
        self._periodic_tasks.stop()
        self.registry.exit_watcher.close()
        self.dispatcher.close()
        self.subscriptions.close()
        self.restart_recovery.save_changed(self.state.runtimes.values(), self.state.scheduler.clients, self.state.now)
        self.usage.sample_all(self.state.runtimes.values(), self.state.now)
        self.state_store.close()
        self.lock_contention.close()
        self.device_monitor.close()
        for runtime in self.state.runtimes.values():
            runtime.detach()

    def _add_device(self, info: DeviceInfo) -> None:
        try:
            device_locks.create_files(info.uuid)  # before a process creates them without access for other users
        except OSError as error:
            self.state.problems.append(f"clients of other users cannot take turns on device {info.uuid}: {error}")
            log.warning("%s", self.state.problems[-1])
        self.dispatcher.dispatch(ev.DeviceFound(self.state.settings.cap_memory(info)))

    def _run_periodic_tasks(self, now: float) -> Iterator[None]:
        """Run all tasks once, in an order in which a task uses what earlier tasks have updated.

        At each `yield` the event loop handles messages, which may change any state.
        """
        state, run, run_each = self.state, self._periodic_tasks.run, self._periodic_tasks.run_each
        run("settings override", self.settings_override.refresh)
        run("host memory", self.host_backing.start)
        yield from run_each(state.process_handles, self.host_backing.read_process)
        run("estimates", self.page_sync.update_estimates, state.now)
        yield
        yield from run_each(state.runtimes, self.page_sync.write_pages)
        yield from run_each(state.runtimes, self.registry.remove_if_unconnected)
        yield from run_each(state.process_handles, self.page_reader.read)
        yield
        run("device health", self._poll_devices, now)
        yield from run_each(state.runtimes, self._update_client)
        run("memory shortage", self.page_sync.handle_memory_shortage, state.process_handles.values())
        run("state store", self.restart_recovery.save_changed, state.runtimes.values(), state.scheduler.clients, now)
        yield from run_each(state.runtimes, lambda runtime: self.usage.sample_client(runtime, state.now))
        run("usage", self.usage.persist, now)
        yield
        run("foreign processes", self.foreign_processes.sample, state.scheduler.devices, state.process_handles.values())
        yield
        run("utilisation", self.utilisation.sample, state.scheduler, state.runtimes.values(), state.now)
        if state.runtimes:
            run("subscriptions", self.subscriptions.schedule_publication)

    def _poll_devices(self, now: float) -> None:
        for uuid, reason in self.device_monitor.poll(now):
            if reason:
                log.warning("placing no new clients on device %s, which has failed: %s", uuid, reason)
            else:
                log.warning("using device %s again, which works again", uuid)
            self.set_device_failure(uuid, reason, works=False)

    def _update_client(self, runtime: ClientRuntime) -> None:
        self.page_sync.read_memory(runtime)
        self.page_sync.refuse_room(runtime)
        self.step_counts.sample(self.state.client(runtime), runtime, self.state.now)
        if self.state.scheduler.settings_of(self.state.client(runtime)).sharing != EXCLUSIVE and (
            progress := self.progress_reports.progress_event(runtime)
        ):
            self.dispatcher.dispatch(progress)
        if runtime.prefetch_devices:
            self.page_sync.publish_prefetch(runtime)
        # Each limit gets the time of its begin, also while no snapshot is built.
        launch_limits.limits_field(self.state.scheduler, self.state.client(runtime), runtime, self.state.now)
        devices = self.state.client(runtime).device_bindings
        is_short = any(device.needs_room_of_caches(self.state.now) for device in devices)
        runtime.report_memory_shortage(is_short and self.state.settings.traits.release_caches)

    def _on_client_removing(self, runtime: ClientRuntime) -> None:
        self.usage.remove_client(runtime, self.state.now)
        self.progress_reports.remove(runtime.client_id)
        self.step_counts.remove(runtime.client_id)

    def set_device_failure(self, uuid: str, failed: str, *, works: bool = True) -> str:
        """Set the failure of a device; empty: the device is in use. Return the failure before.

        `works`: the driver can still move clients off the device. Raises Refused for an unknown device.
        """
        if uuid not in self.state.scheduler.devices:
            known = ", ".join(self.state.scheduler.devices) or "none"
            raise Refused(f"this coordinator has no device {uuid!r}: allowed are {known}")
        before = self.state.scheduler.placement_adapter.placement.allocations[uuid].failure
        self.dispatcher.dispatch(ev.DeviceFailed(uuid, failed, works) if failed else ev.DeviceRecovered(uuid))
        return before

    def change_settings(self, settings: LiveSettings) -> None:
        """Put settings into force. Raises Refused without a change."""
        tenants = {
            client.id: settings.tenant_lookup.tenant_of(client.user) for client in self.state.scheduler.clients.values()
        }
        self.dispatcher.dispatch(ev.SettingsChanged(settings.core_settings(), tenants))
        before, self.state.settings = self.state.settings.as_json(), settings
        self.settings_override.update(
            {name: value for name, value in settings.as_json().items() if value != before[name]}
        )
        for runtime in self.state.runtimes.values():
            self.page_sync.write_quota(runtime)

    def _unknown_devices(self) -> list[str]:
        """Return a message for each entry of the setting `devices` that names no device."""
        scheduler = self.state.scheduler
        return [
            f"the setting devices names {word!r}, which this host does not have, so that entry has no effect"
            for word in scheduler.unknown_devices(scheduler.settings)
        ]

    # --- snapshots

    def build_snapshot(self, changed_clients: set[str]) -> SnapshotSteps:
        """Build the whole snapshot in chunks; see `snapshot.build_snapshot`. No user may see all of it."""
        devices, clients, counters = yield from snapshot.build_snapshot(
            self.state.scheduler,
            self.state.runtimes,
            self.nvml,
            self.utilisation,
            self.foreign_processes,
            self.host_backing,
            self.step_counts,
            changed_clients,
            self.state.clock,
        )
        total = ProcessCounters.combine([self.registry.removed_counters, *counters])
        coordinator = {
            **snapshot.coordinator_fields(
                self.state.socket_path, __version__, self.state.now - self.state.started_at, total
            ),
            **self.usage.summary(),
            "run": self.history.run,
            "overruns": self.executor.overrun_count,
            "refused": dict(refusal_counts),
            "problems": [*self.state.problems, *self._unknown_devices(), *self.state_store.problems],
        }
        return {"devices": devices, "clients": clients, "config": self.state.config(), "coordinator": coordinator}

    def _record_history(self, changed: Iterable[str]) -> None:
        now = self.state.now
        for client in self.history.holding_clients.union(changed):
            self.history.record(client, self.state.scheduler.clients.get(client), now)

    def query_history(self, after: int, client: str) -> dict[str, Any]:
        """Return the history since entry `after`; see `wire.messages.History`."""
        utilisation = {uuid: self.utilisation.of_device(uuid).fraction for uuid in self.state.scheduler.devices}
        self._record_history(())
        return {**self.history.entries_since(after, client, self.state.now), "utilisation": utilisation}

    def query_usage(self, since: float, user: str, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Pass the usage until now to `on_result`; see `UsageService.query`."""
        self.usage.sample_all(self.state.runtimes.values(), self.state.now)
        self.usage.query(since, user, on_result)
