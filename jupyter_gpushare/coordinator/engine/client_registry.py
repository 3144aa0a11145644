"""Registry that adds and removes the clients of a coordinator and their processes, within the limits per user."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ...core.base.device_info import DeviceInfo
from ...core.base.errors import GpuShareError
from ...core.base.quota import Quota
from ...core.interface import events as ev
from ...core.placement import PlacementRequest
from ...wire import messages
from ..clients import page_events
from ..clients.client_runtime import ClientRuntime
from ..clients.handshake import UnverifiedDevices
from ..clients.process_counters import ProcessCounters
from ..clients.process_exit import ProcessExitWatcher
from ..clients.process_handle import MAX_BYTES, ProcessHandle
from ..host.printable_text import sanitize
from ..transport.connection import Connection
from ..transport.rate_limits import LimitExceeded
from .page_sync import PageSync
from .restart_recovery import RestartRecovery, saved_quota
from .state import CoordinatorState

REMOVAL_GRACE_SECONDS = 60.0  # time after which a client without any connection is removed

log = logging.getLogger(__name__)


class ClientRegistry:
    """Registry that alone changes which clients and processes the state has, and reports both to the scheduler."""

    def __init__(
        self,
        state: CoordinatorState,
        dispatch: Callable[[ev.Event], None],
        page_sync: PageSync,
        recovery: RestartRecovery,
        on_removing: Callable[[ClientRuntime], None],
        on_removed: Callable[[], None],
    ) -> None:
        """Construct a registry without clients.

        `on_removing` is called while the scheduler still has the client, and `on_removed` after the removal.
        """
        self._state = state
        self._scheduler = state.scheduler
        self._dispatch = dispatch
        self._page_sync = page_sync
        self._recovery = recovery
        self._on_removing = on_removing
        self._on_removed = on_removed
        self._unverified_devices = UnverifiedDevices()
        self._last_number = 0
        self._unconnected_since = self._state.now
        self._runtimes, self._handles = state.runtimes, state.process_handles
        self.exit_watcher = ProcessExitWatcher(self._on_client_exit)
        self.removed_counters = ProcessCounters()  # sum of the removed clients

    @property
    def seconds_unconnected(self) -> float:
        """Seconds since the last client was removed; 0 while there is a client."""
        return self._state.now - self._unconnected_since if not self._runtimes else 0.0

    def get_or_create(
        self, client: str, token: str, user: str, label: str, quota: Quota, request: PlacementRequest, running: bool
    ) -> ClientRuntime:
        """Return the client with an id, which is registered if it is new.

        Raises PermissionError if the client belongs to another user, and Refused.
        """
        runtime = self._runtimes.get(client)
        if runtime and (runtime.token != token or self._scheduler.clients[client].user != user):
            raise PermissionError(f"client {client!r} exists and the token does not match")
        limit = self._state.settings.traits.max_clients
        if runtime is None and limit and sum(one.user == user for one in self._scheduler.clients.values()) >= limit:
            raise LimitExceeded(
                f"this user has {limit} clients already, the most a user may have: end one of them first"
            )
        tenant = self._state.settings.tenant_lookup.tenant_of(user)
        self._recovery.check_owner(client, user)
        self._dispatch(
            ev.ClientRegistered(client, user, sanitize(label), quota, request.gpus, request, tenant, running)
        )
        if not runtime:
            runtime = self._runtimes[client] = ClientRuntime(client, token)
            if record := self._recovery.restore_client(client, token):
                self._adopt(runtime, saved_quota(record), record.suspended)
            registered = self._scheduler.clients[client]
            runtime.initial_state = (registered.quota, registered.suspended_by_user)
        return runtime

    def add_process(
        self, runtime: ClientRuntime, connection: Connection, hello: messages.Hello
    ) -> tuple[ProcessHandle, int | None]:
        """Add the process that has sent a hello.

        Return its handle and, if it must use another client page than its own, the descriptor of that page.
        Raises InvalidHandshake and Refused, and keeps nothing of the process then.
        """
        limit = self._state.settings.traits.max_processes
        if limit and sum(handle.connection.user == connection.user for handle in self._handles.values()) >= limit:
            raise LimitExceeded(
                f"this user has {limit} processes on the GPU already, the most a user may have: end one of them first"
            )
        self._unverified_devices.check(connection, hello, self._scheduler.devices)
        self._last_number += 1
        handle, instead = runtime.add_process(self._last_number, connection, hello, connection.take_descriptors())
        self._handles[handle.number] = handle
        self._state.runtimes_by_process[handle.number] = runtime
        try:
            self._register_process(runtime, handle, hello)
        except BaseException:
            self.remove_process(handle)  # the session of the connection has no handle yet that it could remove
            raise
        return handle, instead

    def _register_process(self, runtime: ClientRuntime, handle: ProcessHandle, hello: messages.Hello) -> None:
        for report in hello.devices:
            if report.uuid not in self._scheduler.devices:
                name, memory = sanitize(report.name), min(report.memory, MAX_BYTES)
                is_unverified = self._unverified_devices.add(handle.connection)
                if is_unverified:
                    log.warning(
                        "%s reports device %s, which this coordinator cannot find: no other client is placed there",
                        handle.connection,
                        name,
                    )
                info = DeviceInfo(report.uuid, name, memory, hello.simulated, is_unverified)
                self._dispatch(ev.DeviceFound(self._state.settings.cap_memory(info)))
        client = self._scheduler.clients[runtime.client_id]
        # The page is newer than the state store, but older than a change since the client's registration.
        is_unchanged = (client.quota, client.suspended_by_user) == runtime.initial_state
        page_counts = not runtime.had_process and is_unchanged
        earlier, suspended = handle.quota if page_counts else None, handle.suspended_by_user
        idle = handle.suspended_by_policy and not runtime.had_process
        runtime.had_process = True
        turn = page_events.turn_at_join(handle, self._state.now)
        self._page_sync.read_memory(runtime)  # before the scheduler decides what fits beside the process's turn
        self._dispatch(ev.ProcessJoined(runtime.client_id, handle.number, handle.devices, turn, handle.hibernated))
        runtime.write_permit(handle)
        if earlier:  # only now, because the check of a quota needs the client's devices
            self._adopt(runtime, earlier, suspended)
        if idle:
            self._dispatch(ev.SuspendRequested(runtime.client_id, by_policy=True))
        self._page_sync.on_process_added(runtime, handle)

    def _adopt(self, runtime: ClientRuntime, quota: Quota | None, suspended: bool) -> None:
        """Apply the quota and suspension from an earlier coordinator instead of those of the client's start."""
        if quota:
            try:
                self._dispatch(ev.QuotaChanged(runtime.client_id, quota, runtime.allocated))
            except GpuShareError as error:
                log.warning("ignoring the quota of client %s at an earlier coordinator: %s", runtime.client_id, error)
        if suspended != self._scheduler.clients[runtime.client_id].suspended_by_user:
            self._dispatch(
                ev.SuspendRequested(runtime.client_id) if suspended else ev.ResumeRequested(runtime.client_id)
            )

    def remove_process(self, handle: ProcessHandle) -> None:
        """Remove a process whose connection has ended."""
        if runtime := self._state.runtime_of(handle):
            del self._handles[handle.number], self._state.runtimes_by_process[handle.number]
            runtime.remove_process(handle.number)
            if handle.number in self._scheduler.processes:
                self._dispatch(ev.ProcessGone(handle.number))
            self.remove_if_unconnected(runtime)

    def remove_if_unconnected(self, runtime: ClientRuntime) -> None:
        """Remove a client without connections: at once if it is unregistered, else after a grace."""
        if not runtime.is_unconnected:
            runtime.unconnected_since = None
            return
        runtime.unconnected_since = runtime.unconnected_since or self._state.now
        if runtime.is_unregistered or self._state.now - runtime.unconnected_since > REMOVAL_GRACE_SECONDS:
            self._on_removing(runtime)
            self._dispatch(ev.ClientRemoved(runtime.client_id))
            self.removed_counters = ProcessCounters.combine([self.removed_counters, runtime.counters])
            del self._runtimes[runtime.client_id]
            self.exit_watcher.remove(runtime)
            self._unconnected_since = self._state.now
            self._on_removed()

    def _on_client_exit(self, runtime: ClientRuntime) -> None:
        """Unregister the client, so that it is removed as soon as its other processes have gone."""
        if self._runtimes.get(runtime.client_id) is runtime:
            runtime.is_unregistered = True
            self.remove_if_unconnected(runtime)
