"""State of a coordinator outside the scheduler, which the engine and the handlers of requests share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...core import Scheduler
from ...core.state.model import Client
from ..clients.client_runtime import ClientRuntime
from ..clients.process_handle import ProcessHandle
from ..config.live_settings import LiveSettings


@dataclass
class CoordinatorState:
    """Data of a running coordinator, without any behaviour. One event loop owns all of the data."""

    scheduler: Scheduler
    settings: LiveSettings  # in force; a live change replaces the object, so keep no reference to it
    socket_path: str
    clock: Callable[[], float]  # seconds, on the clock of events
    started_at: float
    runtimes: dict[str, ClientRuntime] = field(default_factory=dict)  # by client
    process_handles: dict[int, ProcessHandle] = field(default_factory=dict)  # by number
    runtimes_by_process: dict[int, ClientRuntime] = field(default_factory=dict)  # by the number of the process
    problems: list[str] = field(default_factory=list)  # messages to users about features that do not work

    @property
    def now(self) -> float:
        """Time in seconds, on the clock of events."""
        return self.clock()

    def runtime_of(self, handle: ProcessHandle) -> ClientRuntime | None:
        """Return the client of a process, or None if the process has gone."""
        return self.runtimes_by_process.get(handle.number)

    def client(self, runtime: ClientRuntime) -> Client:
        """Return the scheduler's part of a client."""
        return self.scheduler.clients[runtime.client_id]

    def client_owners(self) -> dict[str, str]:
        """Return the user of each client."""
        return {client.id: client.user for client in self.scheduler.clients.values()}

    def config(self) -> dict[str, Any]:
        """Return the settings in force and `devices_are_simulated`.

        Programs may report simulated devices even without the setting `simulate`.
        """
        devices = self.scheduler.devices.values()
        simulated = bool(devices) and all(device.info.simulated for device in devices)
        return {**self.settings.as_json(), "devices_are_simulated": simulated or self.settings.traits.simulate}
