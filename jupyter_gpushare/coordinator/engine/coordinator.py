"""The coordinator: carries events from its edges to the scheduler and the scheduler's commands back."""

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

TORN_RETRY_SECONDS = 0.001  # seconds after which a page that was being written is read again
AGENT_DEADLINE_GRACE_SECONDS = (
    0.003  # processes close their gates at the deadline by themselves; this late we see that they do
)

log = logging.getLogger(__name__)


class Coordinator:
    """All state of a running coordinator. Everything happens on one event loop."""

    def __init__(self, settings: LiveSettings, socket_path: str, state: Path | None = None) -> None:
        """`state`: the directory for what is to outlive it; None: this user's."""
        state = state or address.state_directory()
        self.audit = AuditLog(state)
        self.settings_override = SettingsOverrideFile(socket_path)
        self.settings = self.settings_override.restore(settings)
        self.socket_path = socket_path
        self.nvml = nvml.Nvml()
        found = nvml.simulated_devices() if settings.traits.simulate else self.nvml.devices()
        self.nvml.sample()
        looks = device_health.DeviceHealth(*((None, {}) if settings.traits.simulate else self.nvml.handles))
        self.device_monitor = DeviceMonitor(self.nvml, looks)
        self.scheduler = self.settings.make_scheduler(found, self.nvml.distance)
        self.runtimes: dict[str, ClientRuntime] = {}  # by client
        self.process_handles: dict[int, ProcessHandle] = {}  # by the numbers of processes
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
        self.problems: list[str] = []  # for people: what does not work beside sharing
        self._timer: asyncio.TimerHandle | None = None
        self.progress_reports = ProgressReports()
        self.utilisation = UtilisationSampler(self.nvml)
        self.foreign_processes = ForeignProcesses(self.nvml)
        self.history = History(self._loop.time())
        self._started_at = self._loop.time()
        for info in found:
            try:
                device_locks.create_files(info.uuid)  # before anybody makes one that is not for everybody
            except OSError as error:
                self.problems.append(f"not everybody can lock device {info.uuid}: {error}")
                log.warning("%s", self.problems[-1])
            self.add_device(info)
        if self.scheduler.placement_adapter.placement.unmet_guarantees:
            log.error(
                "%s: what they are guaranteed does not hold",
                self.scheduler.placement_adapter.placement.unmet_guarantees,
            )
        self._periodic_tasks = PeriodicTasks(self)

    def close(self) -> None:
        """Stop the timers and let go of every page and lock; clients run on and look for another coordinator."""
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
        """Seconds, on the clock of events."""
        return self._loop.time()

    # --- events in, commands out

    def dispatch(self, event: ev.Event) -> None:
        """Hand an event to the scheduler and carry out what it decides, including what follows from that.

        Raises GpuShareError for a refused request, having changed nothing.
        """
        concerned = self._client_of_event(event)
        decided = self.scheduler.handle(event, self._loop.time())
        while True:
            for command in decided:
                concerned.add(command.client)
                self.executor.execute(command)
            if not self._pending_events:
                break
            event = self._pending_events.popleft()
            concerned |= self._client_of_event(event)
            decided = self.scheduler.handle(event, self._loop.time())
        self._record_history(concerned)
        self.usage.on_client_events(concerned)
        self._schedule_deadline()
        self.lock_contention.update()
        self.subscriptions.schedule_publication(concerned)

    def read_page(self, handle: ProcessHandle, retry_if_torn: bool = True) -> None:
        """Handle what the page of a process says, after its doorbell and once a second."""
        process, runtime = self.scheduler.processes.get(handle.number), self.registry.runtime_of(handle)
        if process is None or runtime is None:
            return
        news = turn_reports.read_events(runtime, handle, process, self.now)
        if news is None and retry_if_torn:
            self._loop.call_later(TORN_RETRY_SECONDS, self.read_page, handle, False)
        for event in news or ():
            if isinstance(event, ev.TurnEntered):
                self._read_predecessor_pages(process.client)
            elif isinstance(event, ev.TurnLeft):
                self._read_joiner_pages(process.client)
            self.dispatch(event)
        if handle.has_new_request():
            self.page_sync.handle_memory_shortage([handle])
            self.page_sync.read_memory(runtime)

    def _read_predecessor_pages(self, client: Client) -> None:
        """A client has entered a turn, so the clients that had its devices have left theirs: read that first."""
        self._read_pages(
            grant.client for device in client.device_bindings for grant in device.grants if grant.client is not client
        )

    def _read_joiner_pages(self, client: Client) -> None:
        """A client has left a turn that a joiner may have entered: read that first, or the joiner's permit goes."""
        following = [
            device.next_client
            for device in client.device_bindings
            if device.next_client and device.next_client is not client
        ]
        self._read_pages(joiner for joiner in following if joiner.pending_permit and joiner.pending_permit.joins_turn)

    def _read_pages(self, clients: Iterable[Client]) -> None:
        for identity in [client.id for client in clients]:
            for handle in list(self.runtimes[identity].processes.values()):
                self.read_page(handle)

    def _record_history(self, concerned: Iterable[str]) -> None:
        now = self._loop.time()
        for client in self.history.holding_clients.union(concerned):
            self.history.record(client, self.scheduler.clients.get(client), now)

    def _client_of_event(self, event: ev.Event) -> set[str]:
        """The client that an event is about, if it is about one."""
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
        """Returns for how long the client keeps its devices now, in seconds; None: it does not. Raises Refused."""
        self.dispatch(ev.HoldRequested(runtime.client_id, seconds))
        return self.scheduler.clients[runtime.client_id].hold_seconds_left(self._loop.time())

    def release(self, runtime: ClientRuntime) -> tuple[bool, bool]:
        """Give up the client's turn and its hold. Returns whether it had a turn, and a hold."""
        client = self.scheduler.clients[runtime.client_id]
        had = client.grant is not None, client.hold_seconds_left(self._loop.time()) is not None
        self.dispatch(ev.ReleaseRequested(runtime.client_id))
        return had

    def evict(self, runtime: ClientRuntime) -> MemoryUse:
        """Its turn ends and its memory leaves, until its next turn. Returns what it had. Raises Conflict."""
        if runtime.has_unmovable_memory:
            raise Conflict(
                f"client {runtime.client_id} holds its memory in mode plain, which cannot leave the device: "
                "free it in the program, or start it with GPUSHARE_MEMORY_MODE=swap or unified"
            )
        self.page_sync.read_memory(runtime)
        held = runtime.memory_use
        self.dispatch(ev.EvictRequested(runtime.client_id))
        return held

    def save_client(self, runtime: ClientRuntime) -> None:
        """Its quota or suspension has just been changed, and is to outlive this process."""
        self.restart_recovery.save_soon(runtime, self.scheduler.clients[runtime.client_id], self._loop.time())

    def add_device(self, info: DeviceInfo) -> None:
        """It counts with as much memory as the settings leave it."""
        known = self.settings.cap_memory(info)
        self.dispatch(ev.DeviceFound(known))

    def set_device_failure(self, uuid: str, failed: str) -> str:
        """What is wrong with a device by now; empty: nothing. Returns what was. Raises Refused for one that is not
        here."""
        if uuid not in self.scheduler.devices:
            known = ", ".join(self.scheduler.devices) or "none"
            raise Refused(f"device {uuid!r} is not here: allowed are {known}")
        before = self.scheduler.placement_adapter.placement.allocations[uuid].failure
        self.dispatch(ev.DeviceFailed(uuid, failed) if failed else ev.DeviceRecovered(uuid))
        return before

    def change_settings(self, settings: LiveSettings) -> None:
        """Raises Refused, having changed nothing."""
        groups = {
            client.id: settings.tenant_lookup.tenant_of(client.user) for client in self.scheduler.clients.values()
        }
        self.dispatch(ev.SettingsChanged(settings.core_settings(), groups))
        before, self.settings = self.settings.as_json(), settings
        self.settings_override.update(
            {name: value for name, value in settings.as_json().items() if value != before[name]}
        )
        for runtime in self.runtimes.values():
            self.write_quota(runtime)

    # --- snapshots

    def config(self) -> dict[str, Any]:
        """The settings in force. `simulate` is what was asked for; programs may bring simulated devices without it."""
        devices = self.scheduler.devices.values()
        simulated = bool(devices) and all(device.info.simulated for device in devices)
        return {**self.settings.as_json(), "devices_are_simulated": simulated or self.settings.traits.simulate}

    def build_snapshot(self, changed_clients: set[str]) -> SnapshotSteps:
        """Make the whole snapshot, which is shown to no user as it is, in slices; see `snapshot.take`."""
        found, clients, measures = yield from snapshot.build_snapshot(
            self.scheduler,
            self.runtimes,
            self.nvml,
            self.utilisation,
            self.foreign_processes,
            changed_clients,
            self._loop.time,
        )
        together = ProcessCounters.combine([self.registry.removed_counters, *measures])
        about = {
            **snapshot.coordinator_fields(
                self.socket_path, __version__, self._loop.time() - self._started_at, together
            ),
            **self.usage.summary(),
            "overruns": self.executor.overrun_count,
            "refused": dict(refusal_counts),
            "problems": [*self.problems, *self.state_store.problems],
        }
        return {"devices": found, "clients": clients, "config": self.config(), "coordinator": about}

    def _client_owners(self) -> dict[str, str]:
        return {client.id: client.user for client in self.scheduler.clients.values()}

    def query_history(self, after: int, client: str) -> dict[str, Any]:
        """What has happened since entry `after`; see `wire.messages.History`."""
        utilisation = {uuid: self.utilisation.of_device(uuid).fraction for uuid in self.scheduler.devices}
        self._record_history(())
        return {**self.history.entries_since(after, client, self._loop.time()), "utilisation": utilisation}

    def query_usage(self, since: float, user: str, on_result: Callable[[dict[str, Any]], None]) -> None:
        """Up to now, see `Usage.tell`."""
        self.usage.sample_all(self.runtimes.values(), self._loop.time())
        self.usage.query(since, user, on_result)
