"""Tests of random sequences of events under any policy.

Every client gets its turn, sums of time hold, and illegal events raise.
The host checks the core's invariants after every event, and that no process runs without the locks of its devices.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from jupyter_gpushare.core import Scheduler
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.errors import Conflict, GpuShareError, Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.settings import SETTINGS

from ..support import tier
from .device_locks import OTHER_TURN, OTHER_USER
from .simulated_host import SimulatedHost, baseline
from .simulated_process import CLOSED, CLOSING, OPEN, SimulatedProcess
from .test_illegal_events import OF_NO_CLIENT, OF_NO_DEVICE, OF_NO_PROCESS, frozen

QUANTUM_SECONDS = 0.5
CLIENTS = ["a", "b", "c", "d", "e"]
DEVICES = ["d1", "d2", "d3"]
MEMORY = 1 << 30  # of each device of the host

QUOTAS = st.builds(
    lambda share, limit, offline, resident: Quota(
        min(share, limit), limit, None, resident, "offline" if offline else "online"
    ),
    st.sampled_from([0.0, 0.0, 0.1, 0.4]),
    st.sampled_from([1.0, 1.0, 0.5, 0.05]),
    st.booleans(),
    st.sampled_from([None, None, MEMORY // 8]),
)
SETTINGS = st.builds(
    lambda policy, sharing, quantum, wait, idle, overrun, own: baseline(
        policy=policy, sharing=sharing, time_quantum=quantum, max_wait=wait, devices=own, **idle, **overrun
    ),
    st.sampled_from(sorted(POLICIES)),
    st.sampled_from(list(SETTINGS["sharing"].choices)),
    st.sampled_from([0.001, 0.1, QUANTUM_SECONDS, 5.0, "auto"]),
    st.sampled_from([1.0, 300.0]),
    st.sampled_from(
        [{}, {"idle_evict": 1.0, "idle_suspend": 2.0}, {"idle_move": 1.0}, {"idle_evict": "auto", "idle_suspend": 1.0}]
    ),
    st.builds(
        lambda overrun, patience, after: {"overrun": overrun, "overrun_patience": patience, "overrun_after": after},
        st.sampled_from(list(SETTINGS["overrun"].choices)),
        st.sampled_from([0.0, 0.2]),
        st.sampled_from([0.05, 10.0]),
    ),
    st.sampled_from(
        [
            {},
            {"d1": {"policy": "interactive", "sharing": "packed", "idle_suspend": 1.0}},
            {"0": {"policy": "fcfs", "sharing": "exclusive", "overrun": "wait", "time_quantum": 0.3}},
            {"d1": {"policy": "weighted", "max_wait": 2.0, "overrun": "join"}},
        ]
    ),
)
NEVER = [*OF_NO_PROCESS, *OF_NO_CLIENT, *OF_NO_DEVICE]


def together(settings: Settings) -> bool:
    tables = [vars(settings), *({**vars(settings), **own} for own in settings.devices.values())]
    return any(one["sharing"] != "exclusive" or one["overrun"] == "join" for one in tables)


class AnyHost(RuleBasedStateMachine):
    """Clients of one or several processes on one or several devices, with any sequence of actions."""

    @initialize(count=st.integers(1, 3), settings=SETTINGS)
    def begin(self, count: int, settings: Settings) -> None:
        self.host = SimulatedHost(settings)
        self.done: dict[str, int] = {}
        self.adopted = 0
        self.together = together(settings)  # ever
        for uuid in DEVICES[:count]:
            self.host.add_device(uuid)
            self.host.handle_event(ev.DeviceFound(DeviceInfo(uuid, "one type", MEMORY)))

    def processes(self) -> list[SimulatedProcess]:
        return list(self.host.processes.values())

    def pick(self, data: st.DataObject) -> SimulatedProcess:
        return data.draw(st.sampled_from(self.processes()), label="process")

    def pick_client(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.host.scheduler.clients)), label="client")

    def announce(self, client: str, quota: Quota | None = None, tenant: str = "1000") -> bool:
        if client not in self.host.scheduler.clients:
            try:
                self.host.add_client(client, quota, user=tenant)
            except Refused:
                failed = any(
                    device.failure for device in self.host.scheduler.placement_adapter.placement.allocations.values()
                )
                assert failed or (quota and quota.share), "only shares and working devices run out"
                return False
        return True

    @rule(client=st.sampled_from(CLIENTS), quota=QUOTAS, tenant=st.sampled_from(["1000", "1001"]))
    def register(self, client: str, quota: Quota, tenant: str) -> None:
        assume(client not in self.host.scheduler.clients)
        self.announce(client, quota, tenant)

    @rule(data=st.data())
    @precondition(lambda self: self.host.scheduler.clients)
    def forget(self, data: st.DataObject) -> None:
        client = self.pick_client(data)
        assume(not self.host.scheduler.clients[client].processes)
        self.host.handle_event(ev.ClientRemoved(client))
        self.done.pop(client, None)

    @rule(data=st.data())
    @precondition(lambda self: self.host.scheduler.clients)
    def request_devices(self, data: st.DataObject) -> None:
        self.host.handle_event(ev.DevicesRequested(self.pick_client(data)))

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def move(self, data: st.DataObject) -> None:
        device = data.draw(st.sampled_from(self.host.devices), label="device")
        with contextlib.suppress(Refused):
            self.host.handle_event(ev.MoveRequested(self.pick(data).client, device))

    @rule(data=st.data())
    @precondition(lambda self: self.host.scheduler.clients)
    def withdraw_move(self, data: st.DataObject) -> None:
        self.host.handle_event(ev.MoveWithdrawn(self.pick_client(data)))

    @rule(data=st.data(), error=st.sampled_from(["", "it cannot"]))
    @precondition(lambda self: self.host.processes)
    def a_move_ends_out_of_order(self, data: st.DataObject, error: str) -> None:
        process = self.pick(data)
        device = data.draw(st.sampled_from(self.host.devices), label="device")
        if device != process.moving_to:
            self.host.handle_event(ev.MoveEnded(process.number, device, error))

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def a_move_is_delayed(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if not process.is_moved_by_driver:
            self.host.handle_event(ev.MoveDelayed(process.client))

    @rule(data=st.data(), quota=QUOTAS)
    @precondition(lambda self: self.host.scheduler.clients)
    def change_quota(self, data: st.DataObject, quota: Quota) -> None:
        try:
            self.host.handle_event(ev.QuotaChanged(self.pick_client(data), quota))
        except Refused:
            assert quota.share, "only shares run out"

    @rule(
        data=st.data(),
        event=st.sampled_from([ev.SuspendRequested, ev.SuspendRequested, ev.ResumeRequested, ev.EvictRequested]),
    )
    @precondition(lambda self: self.host.scheduler.clients)
    def suspend_or_resume_or_evict(
        self, data: st.DataObject, event: type[ev.SuspendRequested] | type[ev.ResumeRequested] | type[ev.EvictRequested]
    ) -> None:
        self.host.handle_event(event(self.pick_client(data)))

    @rule(data=st.data(), seconds=st.sampled_from([0.0, 0.5, 3.0]))
    @precondition(lambda self: self.host.scheduler.clients)
    def hold(self, data: st.DataObject, seconds: float) -> None:
        client = self.pick_client(data)
        if self.host.scheduler.clients[client].suspended_by_user:
            with pytest.raises(Conflict):
                self.host.handle_event(ev.HoldRequested(client, max(seconds, 0.5)))
        else:
            self.host.handle_event(ev.HoldRequested(client, seconds))

    @rule(
        data=st.data(),
        eighths=st.integers(0, 10),
        resident_fraction=st.sampled_from([0.0, 0.5, 1.0]),
        short=st.booleans(),
        unbacked_fraction=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
        can_spill=st.booleans(),
    )
    @precondition(lambda self: self.host.scheduler.clients)
    def memory(
        self,
        data: st.DataObject,
        eighths: int,
        resident_fraction: float,
        short: bool,
        unbacked_fraction: float,
        can_spill: bool,
    ) -> None:
        allocated = eighths * MEMORY // 8
        resident = int(min(allocated, MEMORY) * resident_fraction)
        unbacked = int(resident * unbacked_fraction)
        unmovable = max(unbacked, resident // 4)
        self.host.handle_event(
            ev.MemoryReported(
                self.pick_client(data),
                allocated,
                resident,
                unmovable,
                MEMORY // 8 * short,
                unbacked=unbacked,
                can_spill=can_spill,
            )
        )

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def memory_moves(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if process.gate == OPEN:
            self.host.handle_event(ev.RestoreFinished(process.number))
        elif process.gate == CLOSING:
            self.host.handle_event(ev.EvictionStarted(process.number))

    @rule(data=st.data(), launches=st.sampled_from([0, 30, 3000]))
    @precondition(lambda self: self.host.scheduler.clients)
    def progress(self, data: st.DataObject, launches: int) -> None:
        client = self.pick_client(data)
        self.done[client] = self.done.get(client, 0) + launches
        granted_seconds = self.host.scheduler.clients[client].gpu_seconds_at(self.host.now)
        self.host.handle_event(ev.Progress(client, self.done[client], 100 * self.done[client], granted_seconds * 0.9))

    @rule(data=st.data(), fails=st.booleans())
    def device_health(self, data: st.DataObject, fails: bool) -> None:
        uuid = data.draw(st.sampled_from(self.host.devices), label="device")
        self.host.handle_event(ev.DeviceFailed(uuid, "lost") if fails else ev.DeviceRecovered(uuid))

    @rule(data=st.data(), stopped=st.booleans())
    @precondition(lambda self: self.host.scheduler.clients)
    def a_permit_is_not_used(self, data: st.DataObject, stopped: bool) -> None:
        client = self.pick_client(data)
        self.host.handle_event(ev.PermitUnused(client, stopped))
        for process in self.processes() if stopped else ():
            if process.client == client and process.waits and process.gate == CLOSED:
                self.host.handle_event(ev.GateWaitStarted(process.number))  # the process continues

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def stop_or_go_on(self, data: st.DataObject) -> None:
        process = self.pick(data)
        (self.host.continue_process if process.stopped else self.host.stop_process)(process)

    @rule(data=st.data(), contended=st.booleans())
    def lock_contended_by_another_coordinator(self, data: st.DataObject, contended: bool) -> None:
        self.host.handle_event(
            ev.LockContended(data.draw(st.sampled_from(self.host.devices), label="device"), contended)
        )

    @rule(data=st.data(), event=st.sampled_from(NEVER))
    def illegal_event(self, data: st.DataObject, event: ev.Event) -> None:
        events = [event]
        if clients := self.host.scheduler.clients:
            client = data.draw(st.sampled_from(sorted(clients)), label="client")
            events += [
                ev.HoldRequested(client, -1.0),
                ev.HoldRequested(client, 1e9),
                ev.ClientRegistered(client, "another user"),
                ev.ProcessJoined(client, 999, ()),
                ev.ProcessJoined(client, 999, ("no device",)),
                ev.QuotaChanged(client, Quota(memory=100), allocated=101),
            ]
        before = frozen(self.host.scheduler)
        for illegal in events:
            with pytest.raises(GpuShareError):
                self.host.handle_event(illegal)
            assert frozen(self.host.scheduler) == before, illegal

    @rule(client=st.sampled_from(CLIENTS), data=st.data(), drains=st.sampled_from([0.0, 0.01, 0.3]), busy=st.booleans())
    @precondition(lambda self: len(self.host.processes) < 8)
    def join(self, client: str, data: st.DataObject, drains: float, busy: bool) -> None:
        devices = data.draw(st.lists(st.sampled_from(self.host.devices), min_size=1, unique=True), label="devices")
        assume(self.announce(client))
        self.host.add_process(client, *devices, drains_in=drains, busy=busy)

    @rule(seconds=st.sampled_from([0.0, 0.0005, 0.03, 0.4]))
    def reports_are_late(self, seconds: float) -> None:
        """Delay reports, so that the coordinator reads changes of turns late."""
        self.host.report_delay = seconds

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def want(self, data: st.DataObject) -> None:
        self.host.wait_at_gate(self.pick(data))

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def interrupt(self, data: st.DataObject) -> None:
        self.host.stop_waiting(self.pick(data))

    @rule(data=st.data(), again=st.booleans())
    @precondition(lambda self: self.host.processes)
    def idle(self, data: st.DataObject, again: bool) -> None:
        process = self.pick(data)
        self.host.report_idle(process)
        if again:
            self.host.report_busy(process)

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def crossed_or_repeated_gate_waits(self, data: st.DataObject) -> None:
        process = self.pick(data)
        if process.gate != CLOSED:
            self.host.handle_event(ev.GateWaitStarted(process.number))

    @rule(data=st.data(), age=st.integers(1, 3))
    @precondition(lambda self: self.host.processes)
    def stale_reports(self, data: st.DataObject, age: int) -> None:
        process = self.pick(data)
        self.host.handle_event(ev.TurnLeft(process.number, process.turn - age))
        self.host.handle_event(ev.GateClosed(process.number, process.turn - age, self.host.now))

    @rule(data=st.data())
    @precondition(lambda self: self.host.processes)
    def kill(self, data: st.DataObject) -> None:
        self.host.kill_process(self.pick(data))

    @rule(data=st.data(), request=st.sampled_from("123"), starts=st.booleans())
    @precondition(lambda self: self.host.scheduler.clients)
    def cell(self, data: st.DataObject, request: str, starts: bool) -> None:
        client = data.draw(st.sampled_from(sorted(self.host.scheduler.clients)), label="client")
        self.host.handle_event(ev.CellStarted(client, request) if starts else ev.CellEnded(client, request))

    @rule(data=st.data())
    @precondition(lambda self: self.host.scheduler.clients)
    def release(self, data: st.DataObject) -> None:
        self.host.handle_event(ev.ReleaseRequested(data.draw(st.sampled_from(sorted(self.host.scheduler.clients)))))

    @rule(data=st.data())
    @precondition(lambda self: len(self.host.processes) > 1)
    def collective(self, data: st.DataObject) -> None:
        """Let the work of one process wait on the device for another process of the client."""
        process = self.pick(data)
        peers = [p for p in self.processes() if p.client == process.client and p is not process]
        if peers:
            process.peer, process.collectives = data.draw(st.sampled_from(peers)), 1
            process.peer.busy = True

    @rule(client=st.sampled_from(CLIENTS), data=st.data(), phase=st.sampled_from([OPEN, CLOSING]))
    @precondition(lambda self: len(self.host.processes) < 8)
    def adopt(self, client: str, data: st.DataObject, phase: str) -> None:
        """Adopt a process with the turn number that runs on its devices, or else with another number."""
        devices = data.draw(st.lists(st.sampled_from(self.host.devices), min_size=1, unique=True), label="devices")
        assume(self.announce(client))
        numbers = {turn for uuid in devices for turn in self.host.locks.turn_numbers(uuid)}
        assume(not numbers - {OTHER_TURN} or self.together)
        assume(len(numbers) < 2 and OTHER_TURN not in numbers)
        self.adopted += 1
        self.host.adopt(client, *devices, turn=min(numbers, default=(1 << 40) + self.adopted), phase=phase)

    @rule(data=st.data())
    def outsider(self, data: st.DataObject) -> None:
        uuid = data.draw(st.sampled_from(self.host.devices), label="device")
        if not self.host.locks.holders(uuid):
            self.host.lock_by_other(uuid)
        elif OTHER_USER in self.host.locks.holders(uuid):
            self.host.unlock_by_other(uuid)

    @rule(settings=SETTINGS)
    def configure(self, settings: Settings) -> None:
        self.together |= together(settings)
        self.host.handle_event(ev.SettingsChanged(settings))

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.05, 0.1, 0.3, 1.0, 7.0]))
    def time_passes(self, seconds: float) -> None:
        self.host.run(seconds)

    @invariant()
    def no_time_is_made(self) -> None:
        """Check that the clients' recorded use is no more than the use of the devices."""
        if not hasattr(self, "host"):
            return
        host = self.host
        for client in host.scheduler.clients.values():
            seconds, by_device = client.gpu_seconds_at(host.now), client.granted_seconds_at(host.now)
            assert max(by_device.values(), default=0.0) - 1e-6 <= seconds <= sum(by_device.values()) + 1e-6
        used = [client.gpu_seconds_at(host.now) for client in host.scheduler.clients.values()]
        if self.together:
            assert max(used, default=0.0) <= host.now + 1e-6
        else:
            assert sum(used) <= host.now * len(host.devices) + 1e-6

    def teardown(self) -> None:
        """Run without outsiders until every waiting client has run, and check that a replay gives the same commands."""
        if not hasattr(self, "host"):
            return
        host = self.host
        for uuid in host.devices:
            if OTHER_USER in host.locks.holders(uuid):
                host.unlock_by_other(uuid)
            host.handle_event(ev.LockContended(uuid, False))
        for process in host.processes.values():
            process.collectives, process.peer = 0, None
            if process.stopped:
                host.continue_process(process)
        for client in list(host.scheduler.clients):
            host.handle_event(ev.QuotaChanged(client, Quota()))
            host.handle_event(ev.ResumeRequested(client))
            host.handle_event(ev.HoldRequested(client, 0.0))
            use = host.scheduler.clients[client].memory_use
            host.handle_event(ev.MemoryReported(client, use.allocated, use.resident, use.unmovable))
        for process in [p for p in host.processes.values() if p.waits]:
            openings = process.openings
            if process.number in host.processes and process.waits:
                host.run_until(lambda p=process, n=openings: p.openings > n, within=500.0)  # type: ignore[misc]
        assert replayed(host) == host.commands


AnyHost.TestCase.settings = settings(
    max_examples=tier.strength(60, 1500),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=not tier.NIGHTLY,
)
TestAnyHost = AnyHost.TestCase


def replayed(host: SimulatedHost) -> list[cmd.Command]:
    """Return the commands of a second scheduler for the same events."""
    again = Scheduler(host.settings)
    return [command for now, event in host.log for command in again.handle(event, now)]
