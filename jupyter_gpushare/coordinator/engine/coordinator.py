"""Core object of the daemon, which passes events to the scheduler and executes the scheduler's commands."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ... import __version__
from ...core.base.device_info import DeviceInfo
from ...core.base.errors import Conflict, Refused
from ...core.interface import events as ev
from ...core.state.model import Client, MemoryUse
from ...wire import address
from ..clients import turn_reports
from ..clients.client_runtime import ClientRuntime
from ..clients.process_counters import ProcessCounters
from ..clients.process_handle import ProcessHandle
from ..clients.progress_reports import ProgressReports
from ..config.live_settings import LiveSettings
from ..config.settings_override import SettingsOverrideFile
from ..gpu import device_health, nvml
from ..gpu.device_monitor import DeviceMonitor
from ..host import device_locks
from ..monitoring.device_utilisation import UtilisationSampler
from ..monitoring.foreign_processes import ForeignProcesses
from ..monitoring.history import History
from ..monitoring.usage_service import UsageService
from ..storage.audit_log import AuditLog
from ..storage.state_store import StateStore, store_path
from ..transport.responses import refusal_counts
from ..views import snapshot
from ..views.subscriptions import SnapshotSteps, SnapshotSubscriptions
from .client_registry import ClientRegistry
from .command_executor import CommandExecutor
from .lock_contention import LockContention
from .page_sync import PageSync
from .periodic_tasks import PeriodicTasks
from .restart_recovery import RestartRecovery

TORN_RETRY_SECONDS = 0.001  # delay of the second read of a page that the process was writing
# Agents close their gates at the deadline without the coordinator, which checks that they did only after this time.
AGENT_DEADLINE_GRACE_SECONDS = 0.003

log = logging.getLogger(__name__)


class Coordinator:
    """State of a running coordinator. All methods run on one event loop."""

    def __init__(self, settings: LiveSettings, socket_path: str, state: Path | None = None) -> None:
        """Find the devices and start the periodic tasks.

        `state` is the directory of the state that outlives the coordinator; None: this user's state directory.
        """
        state = state or address.state_directory()
        self.audit = AuditLog(state)
        self.settings_override = SettingsOverrideFile(socket_path)
        self.settings = self.settings_override.restore(settings)
        self.socket_path = socket_path
        self.nvml = nvml.Nvml()
        found = nvml.simulated_devices() if settings.traits.simulate else self.nvml.devices()
        self.nvml.sample()
        health = device_health.DeviceHealth(*((None, {}) if settings.traits.simulate else self.nvml.handles))
        self.device_monitor = DeviceMonitor(self.nvml, health)
        self.scheduler = self.settings.make_scheduler(found, self.nvml.distance)
        self.runtimes: dict[str, ClientRuntime] = {}  # by client
        self.process_handles: dict[int, ProcessHandle] = {}  # by number
        self.registry = ClientRegistry(self)
        self.subscriptions = SnapshotSubscriptions(self.build_snapshot, self._client_owners)
        self._loop = asyncio.get_running_loop()
        self._pending_events: deque[ev.Event] = deque()
        self.page_sync = PageSync(self.scheduler, self.runtimes, self.dispatch, self._loop.time)
        self.executor = CommandExecutor(
            self.runtimes,
            self._pending_events.append,
            self.write_quota,
            self.page_sync.publish_prefetch,
            self.audit,
        )
        self.lock_contention = LockContention(self.scheduler.devices, self.dispatch)
        self.state_store = StateStore(store_path(socket_path, state), self._loop.call_soon_threadsafe)
        self.restart_recovery = RestartRecovery(self.state_store, self._loop.time())
        self.usage = UsageService(self.scheduler, self.state_store, settings.traits.usage_kept, self._loop.time())
        self.problems: list[str] = []  # messages to users about features that do not work
        self._timer: asyncio.TimerHandle | None = None
        self.progress_reports = ProgressReports()
        self.utilisation = UtilisationSampler(self.nvml)
        self.foreign_processes = ForeignProcesses(self.nvml)
        self.history = History(self._loop.time())
        self._started_at = self._loop.time()
        for info in found:
            try:
                device_locks.create_files(info.uuid)  # before a process creates them without access for other users
            except OSError as error:
                self.problems.append(f"clients of other users cannot take turns on device {info.uuid}: {error}")
                log.warning("%s", self.problems[-1])
            self.add_device(info)
        if self.scheduler.placement_adapter.placement.unmet_guarantees:
            log.error(
                "not keeping the guarantees of tenants, which this host has no devices for: %s",
                self.scheduler.placement_adapter.placement.unmet_guarantees,
            )
        self._periodic_tasks = PeriodicTasks(self)

    def close(self) -> None:
        """Stop the timers and close all pages and locks; clients run on and connect to the next coordinator."""
        self._periodic_tasks.stop()
        self.registry.exit_watcher.close()
        if self._timer:
            self._timer.cancel()
        self.subscriptions.close()
        self.restart_recovery.save_changed(self.runtimes.values(), self.scheduler.clients, self._loop.time())
        self.usage.sample_all(self.runtimes.values(), self._loop.time())
        self.state_store.close()
        self.lock_contention.close()
        self.device_monitor.close()
        for runtime in self.runtimes.values():
            runtime.detach()

    @property
    def now(self) -> float:
        """Time in seconds, on the clock of events."""
        return self._loop.time()

    # --- events in, commands out

    def dispatch(self, event: ev.Event) -> None:
        """Pass an event to the scheduler and execute its commands, and so with all events that follow from these.

        Raises GpuShareError for a refused request, without a change.
        """
        changed = self._client_of_event(event)
        commands = self.scheduler.handle(event, self._loop.time())
        while True:
            for command in commands:
                changed.add(command.client)
                self.executor.execute(command)
            if not self._pending_events:
                break
            event = self._pending_events.popleft()
            changed |= self._client_of_event(event)
            commands = self.scheduler.handle(event, self._loop.time())
        self._record_history(changed)
        self.usage.on_client_events(changed)
        self._schedule_deadline()
        self.lock_contention.update()
        self.subscriptions.schedule_publication(changed)

    def read_page(self, handle: ProcessHandle, retry_if_torn: bool = True) -> None:
        """Read the page of a process and dispatch the events that follow from it."""
        process, runtime = self.scheduler.processes.get(handle.number), self.registry.runtime_of(handle)
        if process is None or runtime is None:
            return
        events = turn_reports.read_events(runtime, handle, process, self.now)
        if events is None and retry_if_torn:
            self._loop.call_later(TORN_RETRY_SECONDS, self.read_page, handle, False)
        for event in events or ():
            if isinstance(event, ev.TurnEntered):
                self._read_predecessor_pages(process.client)
            elif isinstance(event, ev.TurnLeft):
                self._read_joiner_pages(process.client)
            self.dispatch(event)
        if handle.has_new_request():
            self.page_sync.handle_memory_shortage([handle])
            self.page_sync.read_memory(runtime)

    def _read_predecessor_pages(self, client: Client) -> None:
        """Read the pages of the clients that had the devices of a client that has entered a turn.

        Those clients have left their turns, and the scheduler must get these events first.
        """
        self._read_pages(
            grant.client for device in client.device_bindings for grant in device.grants if grant.client is not client
        )

    def _read_joiner_pages(self, client: Client) -> None:
        """Read the pages of the clients that may have joined the turn that a client has left.

        Without their events, the scheduler would withdraw their permits.
        """
        next_clients = [
            device.next_client
            for device in client.device_bindings
            if device.next_client and device.next_client is not client
        ]
        self._read_pages(
            joiner for joiner in next_clients if joiner.pending_permit and joiner.pending_permit.joins_turn
        )

    def _read_pages(self, clients: Iterable[Client]) -> None:
        for identity in [client.id for client in clients]:
            for handle in list(self.runtimes[identity].processes.values()):
                self.read_page(handle)

    def _record_history(self, changed: Iterable[str]) -> None:
        now = self._loop.time()
        for client in self.history.holding_clients.union(changed):
            self.history.record(client, self.scheduler.clients.get(client), now)

    def _client_of_event(self, event: ev.Event) -> set[str]:
        """Return the client that an event is about, or the empty set."""
        if process := self.scheduler.processes.get(getattr(event, "process", 0)):
            return {process.client.id}
        client = getattr(event, "client", "")
        return {client} if client else set()

    def _schedule_deadline(self) -> None:
        due = self.scheduler.next_deadline()
        if due is not None and self.scheduler.turns.is_turn_deadline(due):
            due += AGENT_DEADLINE_GRACE_SECONDS
        if self._timer:
            if due == self._timer.when():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._on_deadline)

    def _on_deadline(self) -> None:
        self._timer = None
        self.dispatch(ev.Tick())

    def write_quota(self, runtime: ClientRuntime) -> None:
        client = self.scheduler.clients[runtime.client_id]
        memory = sum(self.scheduler.devices[uuid].info.memory for uuid in client.devices)
        idle = self.scheduler.idle_release(client)
        runtime.write_quota(client, memory, self.scheduler.quantum(client), idle, self.settings.traits)

    def hold(self, runtime: ClientRuntime, seconds: float) -> float | None:
        """Request a hold, and return the seconds for which the client keeps its devices, or None. Raises Refused."""
        self.dispatch(ev.HoldRequested(runtime.client_id, seconds))
        return self.scheduler.clients[runtime.client_id].hold_seconds_left(self._loop.time())

    def release(self, runtime: ClientRuntime) -> tuple[bool, bool]:
        """End the client's turn and hold. Return whether the client had a turn, and whether it had a hold."""
        client = self.scheduler.clients[runtime.client_id]
        had = client.grant is not None, client.hold_seconds_left(self._loop.time()) is not None
        self.dispatch(ev.ReleaseRequested(runtime.client_id))
        return had

    def evict(self, runtime: ClientRuntime) -> MemoryUse:
        """End the client's turn and evict its memory until its next turn.

        Return the memory use before. Raises Conflict for memory that cannot be evicted.
        """
        if runtime.has_unmovable_memory:
            raise Conflict(
                f"client {runtime.client_id} has its memory in mode plain, which cannot leave the device: "
                "free the memory in the program, or start the program with GPUSHARE_MEMORY_MODE=swap or unified"
            )
        self.page_sync.read_memory(runtime)
        memory_use = runtime.memory_use
        self.dispatch(ev.EvictRequested(runtime.client_id))
        return memory_use

    def save_client(self, runtime: ClientRuntime) -> None:
        """Save the changed quota or suspension of a client, which must outlive this coordinator."""
        self.restart_recovery.save_soon(runtime, self.scheduler.clients[runtime.client_id], self._loop.time())

    def add_device(self, info: DeviceInfo) -> None:
        """Add a device to the scheduler, with its memory capped by the settings."""
        self.dispatch(ev.DeviceFound(self.settings.cap_memory(info)))

    def set_device_failure(self, uuid: str, failed: str) -> str:
        """Set the failure of a device; empty: the device works. Return the failure before.

        Raises Refused for an unknown device.
        """
        if uuid not in self.scheduler.devices:
            known = ", ".join(self.scheduler.devices) or "none"
            raise Refused(f"this coordinator has no device {uuid!r}: allowed are {known}")
        before = self.scheduler.placement_adapter.placement.allocations[uuid].failure
        self.dispatch(ev.DeviceFailed(uuid, failed) if failed else ev.DeviceRecovered(uuid))
        return before

    def change_settings(self, settings: LiveSettings) -> None:
        """Put settings into force. Raises Refused without a change."""
        tenants = {
            client.id: settings.tenant_lookup.tenant_of(client.user) for client in self.scheduler.clients.values()
        }
        self.dispatch(ev.SettingsChanged(settings.core_settings(), tenants))
        before, self.settings = self.settings.as_json(), settings
        self.settings_override.update(
            {name: value for name, value in settings.as_json().items() if value != before[name]}
        )
        for runtime in self.runtimes.values():
            self.write_quota(runtime)

    # --- snapshots

    def config(self) -> dict[str, Any]:
        """Return the settings in force and `devices_are_simulated`.

        Programs may report simulated devices even without the setting `simulate`.
        """
        devices = self.scheduler.devices.values()
        simulated = bool(devices) and all(device.info.simulated for device in devices)
        return {**self.settings.as_json(), "devices_are_simulated": simulated or self.settings.traits.simulate}

    def build_snapshot(self, changed_clients: set[str]) -> SnapshotSteps:
        """Build the whole snapshot in chunks; see `snapshot.build_snapshot`. No user may see all of it."""
        devices, clients, counters = yield from snapshot.build_snapshot(
            self.scheduler,
            self.runtimes,
            self.nvml,
            self.utilisation,
            self.foreign_processes,
            changed_clients,
            self._loop.time,
        )
        total = ProcessCounters.combine([self.registry.removed_counters, *counters])
        coordinator = {
            **snapshot.coordinator_fields(self.socket_path, __version__, self._loop.time() - self._started_at, total),
            **self.usage.summary(),
            "overruns": self.executor.overrun_count,
            "refused": dict(refusal_counts),
            "problems": [*self.problems, *self.state_store.problems],
        }
        return {"devices": devices, "clients": clients, "config": self.config(), "coordinator": coordinator}

    def _client_owners(self) -> dict[str, str]:
        return {client.id: client.user for client in self.scheduler.clients.values()}

    def query_history(self, after: int, client: str) -> dict[str, Any]:
        """Return the history since entry `after`; see `wire.messages.History`."""
        utilisation = {uuid: self.utilisation.of_device(uuid).fraction for uuid in self.scheduler.devices}
        self._record_history(())
        return {**self.history.entries_since(after, client, self._loop.time()), "utilisation": utilisation}

    def query_usage(self, since: float, user: str, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Pass the usage until now to `on_result`; see `UsageService.query`."""
        self.usage.sample_all(self.runtimes.values(), self._loop.time())
        self.usage.query(since, user, on_result)
