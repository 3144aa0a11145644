"""Extension application, which jupyter_server configures, starts and stops, with the list of routes.

The application constructs and connects the supervisor, the services for kernels, and the emitter of events.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Any

from jupyter_server.extension.application import ExtensionApp
from jupyter_server.serverapp import ServerApp

from ..cluster.kernel_records import notebook_root
from ..config.traits import GpuShare, server_settings
from ..wire.client import default_coordinator_argv
from ..wire.messages import Request
from . import handlers, metrics
from .event_emitter import EventEmitter
from .kernel_services.iopub_cells import CellReporter
from .kernel_services.kernel_adoption import KernelAdoption
from .kernel_services.kernels import KERNEL_ACTIONS, KernelEvents, Kernels
from .kernel_services.label_sync import CONTENTS_ACTIONS, LabelSync
from .kernel_services.overrun_interrupts import OverrunInterrupter
from .kernel_services.waiting_starts import WaitingStarts
from .node_snapshots import NodeSnapshots
from .settings_drift import SettingsDrift
from .supervisor import Supervisor
from .websocket import EventsHandler

ROOT = "/gpushare/api"


class GpuShareApp(ExtensionApp):
    """Extension of a Jupyter server. `c.GpuShare` has the settings for the coordinators that the extension starts."""

    name = "jupyter_gpushare"
    description = "Share GPUs among notebook kernels, in turns."
    classes = [ServerApp, GpuShare]  # noqa: RUF012 (an instance variable for type checkers, in the base class)
    load_other_extensions = True

    def _config_file_name_default(self) -> str:
        # The coordinator reads the same file.
        return "jupyter_gpushare_config"

    def initialize_settings(self) -> None:
        """Create the parts of the extension without connecting or starting anything.

        jupyter_server calls the method when its own managers exist.
        """
        assert self.serverapp is not None
        self.gpushare, problem = server_settings(self)
        if problem:
            self.log.error("found a fault of GPU sharing: %s", problem)
        self.kernels = Kernels(self.serverapp.kernel_manager)
        events = self.serverapp.event_logger
        root = notebook_root(self.serverapp)
        self.starts = WaitingStarts(root, lambda: self.supervisor.send_changes())
        self.nodes = NodeSnapshots(
            self.kernels,
            self.starts.snapshot,
            lambda: self.supervisor.is_watched,
            lambda: self.supervisor.send_changes(),
            self.log,
            problem,
        )
        self._label_sync = LabelSync(
            self.serverapp.session_manager,
            self.kernels,
            lambda: self.supervisor.status,
            lambda: self.supervisor.address,
            self.log,
        )
        self._overrun_interrupter = OverrunInterrupter(self.kernels, self.log)
        self.supervisor = Supervisor(
            self.gpushare.coordinator,
            argv=self._coordinator_argv,
            needed=self.kernels.has_shared_kernels,
            listeners=[
                SettingsDrift(self.gpushare, self.log).on_snapshot,
                self._label_sync.on_snapshot,
                self._overrun_interrupter.on_snapshot,
                *([EventEmitter(events).on_snapshot] if events else []),
            ],
            merged=self.nodes.merged,
            refresh=self.nodes.refresh,
            log=self.log,
        )
        manager = self.serverapp.kernel_manager
        self.cell_reporter = CellReporter(manager, self.kernels, lambda: self.supervisor.address, self.log)
        self._kernel_events = KernelEvents(
            self.kernels,
            self._request_running,
            self._kernel_started,
            self.cell_reporter.unwatch,
            self.log,
        )
        self._kernel_adoption = KernelAdoption(self.serverapp, root, self.log)
        if events:
            events.add_listener(schema_id=KERNEL_ACTIONS, listener=self._kernel_events)
            events.add_listener(schema_id=CONTENTS_ACTIONS, listener=self._label_sync)
        self._unregister: Callable[[], None] | None = metrics.register(self._snapshots, self.nodes.answers)

    def _snapshots(self) -> dict[str, dict[str, Any]]:
        """Return the last snapshots of this host, under "", and of the nodes."""
        return self.nodes.snapshots(self.supervisor.status)

    async def _request_running(self, node: str, message: Request) -> Any:
        """Send a request to the coordinator of a node, or of this host for "", if that coordinator runs."""
        if node:
            return await self.nodes.request(node, message)
        return await self.supervisor.request(message, start=False)

    def _kernel_started(self, kernel_id: str) -> None:
        self.supervisor.kernel_started()
        self.nodes.follow()
        self.cell_reporter.watch(kernel_id)
        if kernel_id in self.kernels:
            self.kernels.leave_old_address(kernel_id)

    def initialize_handlers(self) -> None:
        parts = {
            "supervisor": self.supervisor,
            "kernels": self.kernels,
            "nodes": self.nodes,
            "starts": self.starts,
        }
        routes: list[tuple[str, type[handlers.GpuShareHandler]]] = [
            ("/status", handlers.StatusHandler),
            ("/history", handlers.HistoryHandler),
            ("/usage", handlers.UsageHandler),
            ("/config", handlers.ConfigHandler),
            ("/events", EventsHandler),
            ("/clients/([^/]+)/quota", handlers.QuotaHandler),
            ("/clients/([^/]+)/hold", handlers.HoldHandler),
            ("/kernels/([^/]+)", handlers.KernelHandler),
            ("/starts/([^/]+)", handlers.StartHandler),
            ("/(.*)", handlers.NoSuchRoute),
        ]
        for action in handlers.ACTIONS:
            self.handlers.append(
                (f"{ROOT}/clients/([^/]+)/{action}", handlers.ActionHandler, {**parts, "action": action})
            )
        self.handlers.extend((ROOT + pattern, handler, parts) for pattern, handler in routes)

    async def _start_jupyter_server_extension(self, serverapp: ServerApp) -> None:
        self.supervisor.begin()
        self.starts.begin()
        self._kernel_adoption.begin()

    async def stop_extension(self) -> None:
        """Stop the extension, also after its initialisation has failed."""
        supervisor: Supervisor | None = getattr(self, "supervisor", None)
        if supervisor is None:
            return
        assert self.serverapp is not None
        if events := self.serverapp.event_logger:
            events.remove_listener(schema_id=KERNEL_ACTIONS, listener=self._kernel_events)
            events.remove_listener(schema_id=CONTENTS_ACTIONS, listener=self._label_sync)
        if self._unregister:
            self._unregister()
            self._unregister = None
        await self.starts.close()
        await self._kernel_adoption.close()
        self.cell_reporter.close()
        self._label_sync.close()
        self._overrun_interrupter.close()
        await self.nodes.close()
        await supervisor.close()
        from ..cluster.node_connection import CONNECTIONS

        atexit.register(CONNECTIONS.close_for_good)  # the server shuts its kernels down after its extensions

    def _coordinator_argv(self) -> list[str]:
        argv: list[Any] = default_coordinator_argv()
        # A command from the environment gets no more options.
        return argv if os.environ.get("GPUSHARE_COORDINATOR_ARGV") else [*argv, *self.gpushare.argv()]
