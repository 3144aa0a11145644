"""Page sync between real pages and a real scheduler, with processes that the test itself plays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from jupyter_gpushare.agent.pages import create_memfd
from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.clients.client_runtime import ClientRuntime
from jupyter_gpushare.coordinator.clients.process_handle import ProcessHandle
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings
from jupyter_gpushare.coordinator.engine.page_sync import PageSync
from jupyter_gpushare.coordinator.engine.state import CoordinatorState
from jupyter_gpushare.coordinator.host.cgroups import PROC
from jupyter_gpushare.coordinator.monitoring.host_backing import HostBackingSampler
from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.wire.page import UNKNOWN, Page

MIB = 1 << 20
DEVICE = "GPU-one"  # of 1 GiB


class PageSyncHarness:
    """Page sync between real pages and a real scheduler, without sockets. `meanwhile` runs after each event."""

    def __init__(self, proc: Path = PROC) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(Settings())
        self.runtimes: dict[str, ClientRuntime] = {}
        self.handles: dict[str, ProcessHandle] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        state = CoordinatorState(
            self.scheduler, LiveSettings(GpuShare()), "", lambda: self.now, self.now, runtimes=self.runtimes
        )
        self.host_backing = HostBackingSampler(self.scheduler, self.runtimes, proc)
        self.page_sync = PageSync(state, self.dispatch, self.host_backing)
        self.dispatch(ev.DeviceFound(DeviceInfo(DEVICE, "Fake GPU", 1 << 30, True)))

    def dispatch(self, event: ev.Event) -> None:
        self.scheduler.handle(event, self.now)
        self.meanwhile()

    def process(
        self,
        name: str,
        mib: int,
        unmovable: int = 0,
        runs: bool = True,
        pid: int = 0,
        devices: tuple[str, ...] = (DEVICE,),
    ) -> ProcessHandle:
        """Add a client with one process that has `mib` MiB on the devices."""
        number = len(self.handles) + 1
        page = Page(create_memfd("gpushare_page"))
        page.control.resident_target[0 : len(devices)] = [UNKNOWN] * len(devices)
        hello: Any = SimpleNamespace(devices=[SimpleNamespace(uuid=uuid) for uuid in devices], hibernated=0)
        handle = ProcessHandle(number, cast(Any, SimpleNamespace(send=lambda *message: True, pid=pid)), page, hello)
        runtime = self.runtimes[name] = ClientRuntime(name, "")
        runtime.processes[number] = handle
        self.handles[name] = handle
        self.dispatch(ev.ClientRegistered(name, "1000", name, Quota(), len(devices)))
        self.dispatch(ev.ProcessJoined(name, number, devices))
        set_memory(handle, mib, unmovable)
        self.page_sync.read_memory(runtime)
        if runs:
            self.dispatch(ev.GateWaitStarted(number))
            permit = self.scheduler.clients[name].permit
            assert permit and permit.may
            self.dispatch(ev.TurnEntered(number, permit.turn, self.now))
            assert self.scheduler.clients[name].phase == "running"
        return handle

    def answer(self, handle: ProcessHandle) -> int:
        """Handle the process's request for room, and return the number of its last refused request, or 0."""
        self.page_sync.handle_memory_shortage([handle])
        return int(handle.page.control.refused_request_seq)

    def sample_host_memory(self) -> None:
        """Sample the host memory and the pages, as the coordinator does once a second."""
        self.host_backing.start()
        for handle in self.handles.values():
            self.host_backing.read_process(handle)
        self.page_sync.update_estimates(self.now)
        for runtime in self.runtimes.values():
            self.page_sync.write_pages(runtime)
        for runtime in self.runtimes.values():
            self.page_sync.read_memory(runtime)

    def close(self) -> None:
        for handle in self.handles.values():
            handle.page.close()


def set_memory(handle: ProcessHandle, mib: int, unmovable: int = 0) -> None:
    report = handle.page.report
    report.allocated = report.resident = mib * MIB
    report.unmovable = unmovable * MIB
