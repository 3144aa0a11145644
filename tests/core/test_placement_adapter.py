"""Tests of placement in the scheduler: refusals, guests that give way, failed devices, and ceilings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core.base.errors import Refused, TooManyDevices
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.placement import PlacementRequest, PlacementSettings, Tenant

from ..support import tier
from .conftest import QUANTUM_SECONDS
from .simulated_host import SimulatedHost

GIB = 1 << 30  # memory of each device of the host


REMEDY = (
    "restart the kernel to get another device; no move is possible, because no other device of its type is open to the "
    "client"
)


def host_with(devices: int, *tenants: Tenant, sharing: str = "exclusive", **more: Any) -> SimulatedHost:
    host = SimulatedHost(
        Settings(QUANTUM_SECONDS, "fcfs", sharing=sharing, placement=PlacementSettings(tenants=tenants, **more))
    )
    for number in range(devices):
        host.add_device(f"d{number}")
    return host


def come(
    host: SimulatedHost, client: str, group: str = "", quota: Quota | None = None, **request: Any
) -> tuple[str, ...]:
    placement_request = PlacementRequest(**request)
    host.handle_event(
        ev.ClientRegistered(client, "1000", client, quota or Quota(), placement_request.gpus, placement_request, group)
    )
    return host.scheduler.clients[client].devices


def notices(host: SimulatedHost) -> list[tuple[str, str]]:
    return [(command.client, command.message) for command in host.commands if isinstance(command, cmd.NotifyUser)]


def test_a_part_of_a_device_is_a_number_of_bytes() -> None:
    host = host_with(2)
    come(host, "a", fraction=0.25)
    assert host.scheduler.clients["a"].quota.memory == GIB // 4
    come(host, "b", fraction=0.5, gpus=2)
    assert host.scheduler.clients["b"].quota.memory == GIB


def test_memory_fraction_is_resolved_with_the_device() -> None:
    host = host_with(0)
    assert come(host, "a", fraction=0.25) == ()
    host.add_device("d0")
    host.add_process("a", "d0")
    assert host.scheduler.clients["a"].quota.memory == GIB // 4


def test_a_refused_client_leaves_nothing_behind() -> None:
    host = host_with(1)
    come(host, "a", quota=Quota(share=0.6))
    for _ in range(2):
        with pytest.raises(Refused, match=r"has 0.4 of its share left"):
            come(host, "b", quota=Quota(share=0.5))
        with pytest.raises(TooManyDevices):
            come(host, "c", gpus=2)
    assert set(host.scheduler.clients) == {"a"}
    host.add_process("a", "d0")
    assert come(host, "b", quota=Quota(share=0.4)) == ("d0",)


def test_running_client_is_accepted_without_a_missing_share() -> None:
    host = host_with(1)
    come(host, "a", quota=Quota(share=0.6))
    host.handle_event(ev.ClientRegistered("fits", "1000", quota=Quota(share=0.3), running=True))
    host.handle_event(ev.ClientRegistered("back", "1000", quota=Quota(share=0.5), running=True))
    host.add_process("back", "d0")
    quotas = [host.scheduler.clients[name].quota for name in ("fits", "back")]
    assert quotas == [Quota(share=0.3), Quota(service="offline")]
    assert [client for client, message in notices(host) if "has 0.1 of its share left" in message] == ["back"]
    host.handle_event(ev.ClientRemoved("a"))
    host.handle_event(ev.QuotaChanged("back", Quota(share=0.5)))
    assert host.scheduler.clients["back"].quota == Quota(share=0.5)


def test_client_beyond_the_tenants_count_stays_offline() -> None:
    """A client that runs already is accepted beyond the ceiling, but stays offline."""
    host = host_with(1, Tenant("students", max_clients=1))
    come(host, "a", "students")
    host.handle_event(ev.ClientRegistered("b", "1000", tenant="students", running=True))
    for quota in (Quota(), Quota(memory=1)):
        with pytest.raises(
            Refused, match="tenant 'students' has 2 clients: allowed are 1, and this client exceeds that number"
        ):
            host.handle_event(ev.QuotaChanged("b", quota))
    host.handle_event(ev.QuotaChanged("b", Quota(memory=1, service="offline")))
    for service in ("offline", "online"):
        host.handle_event(ev.QuotaChanged("a", Quota(service=service)))
    host.handle_event(ev.ClientRemoved("a"))
    host.handle_event(ev.QuotaChanged("b", Quota()))
    assert host.scheduler.clients["b"].quota == Quota()


def test_a_share_counts_on_every_device_that_the_client_uses() -> None:
    host = host_with(3, Tenant("students", share=1.0))
    come(host, "a", "students", quota=Quota(share=0.4))
    host.add_process("a", "d0", "d1")
    assert host.scheduler.clients["a"].quota.share == 0.4
    with pytest.raises(Refused, match=r"0.8 of 1 are taken, allowed is up to 0.2"):
        come(host, "b", "students", quota=Quota(share=0.3))
    with pytest.raises(Refused, match=r"share=0.6 of 2 devices is above"):
        host.handle_event(ev.QuotaChanged("a", Quota(share=0.6)))
    host.add_process("a", "d2")
    assert host.scheduler.clients["a"].quota.share == 0.0
    assert [client for client, message in notices(host) if "without a guaranteed share" in message] == ["a"]
    assert come(host, "b", "students", quota=Quota(share=1.0))


def test_a_guest_is_interrupted_at_once_when_the_owner_needs_its_device() -> None:
    host = host_with(1, Tenant("lab", cells={"device": 1}))
    come(host, "guest")
    guest = host.add_process("guest", "d0", busy=True)
    host.run(0.1 * QUANTUM_SECONDS)
    assert guest.gate == "open"
    before = len(host.commands)
    come(host, "owner", "lab")
    assert guest.gate == "open", "the owner does not use it yet"
    assert cmd.UpdateQuota("guest") in host.commands[before:], "its processes place their memory by the class"
    host.add_process("owner", "d0", busy=True)
    assert host.run_until(lambda: host.running("d0") == "owner") == 0
    host.run(5 * QUANTUM_SECONDS)
    assert host.scheduler.clients["guest"].gpu_seconds == pytest.approx(0.1 * QUANTUM_SECONDS), (
        "the owner is never idle"
    )


def test_a_guest_runs_while_the_owner_is_idle_and_is_no_guest_when_it_has_gone() -> None:
    host = host_with(1, Tenant("lab", cells={"device": 1}))
    come(host, "guest")
    come(host, "owner", "lab")
    host.add_process("guest", "d0", busy=True)
    assert host.running("d0") == "guest"
    assert host.scheduler.clients["guest"].service_rank == 1
    commands = host.handle_event(ev.ClientRemoved("owner"))
    assert host.scheduler.clients["guest"].service_rank == 0
    assert cmd.UpdateQuota("guest") in commands, "its processes place their memory by the class"


def test_clients_without_processes_leave_a_failed_device() -> None:
    host = host_with(2)
    assert [come(host, client) for client in "abc"] == [("d0",), ("d1",), ("d0",)]
    host.add_process("c", "d0")
    host.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    assert [host.scheduler.clients[client].devices for client in "abc"] == [("d1",), ("d1",), ("d0",)]
    assert notices(host) == [("c", f"device d0 has failed: Xid 79; {REMEDY}")]
    host.handle_event(ev.DeviceFailed("d1", "Xid 79"))
    assert [client for client, _ in notices(host)[1:]] == ["b", "a"], "no device is left"


def test_failed_device_notifies_its_clients_and_gets_no_new_ones() -> None:
    host = host_with(2)
    come(host, "a")
    host.add_process("a", "d0")
    come(host, "b")
    host.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    host.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    assert notices(host) == [("a", f"device d0 has failed: Xid 79; {REMEDY}")]
    assert come(host, "c") == ("d1",)
    host.handle_event(ev.DeviceRecovered("d0"))
    host.handle_event(ev.DeviceRecovered("d0"))
    assert notices(host)[1:] == [("a", "device d0 works again")]
    assert come(host, "d") == ("d0",)


def test_a_program_that_starts_anew_leaves_a_failed_device() -> None:
    host = host_with(2)
    come(host, "a")
    process = host.add_process("a", "d0")
    host.handle_event(ev.DeviceFailed("d0", "Xid 79"))
    assert come(host, "a") == ("d0",), "it runs there"
    host.kill_process(process)
    assert come(host, "a") == ("d1",)
    host.handle_event(ev.DeviceFailed("d1", "Xid 79"))
    assert come(host, "a") == ("d1",), "no device is better"


def test_tenants_are_changed_live_or_refused_whole() -> None:
    host = host_with(2)
    come(host, "guest")
    host.add_process("guest", "d0", busy=True)
    before = host.scheduler.settings
    too_many = PlacementSettings(tenants=(Tenant("lab", cells={"device": 3}),))
    with pytest.raises(Refused, match="more cells than exist: 3 device"):
        host.handle_event(ev.SettingsChanged(Settings(QUANTUM_SECONDS, "fair", placement=too_many)))
    assert host.scheduler.settings is before
    both = PlacementSettings(tenants=(Tenant("lab", cells={"device": 2}),))
    host.handle_event(ev.SettingsChanged(Settings(QUANTUM_SECONDS, "fcfs", placement=both)))
    assert come(host, "owner", "lab") == ("d1",)


@settings(max_examples=tier.strength(15, 400), deadline=None)
@given(
    devices=st.integers(1, 4),
    gangs=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "lab"])), min_size=1, max_size=6),
    split=st.booleans(),
    strategy=st.sampled_from(["spread", "pack", "fgd"]),
    policy=st.sampled_from(["fcfs", "fair", "interactive"]),
    failing=st.integers(0, 3),
)
def test_gangs_get_all_devices_or_none_without_starvation(
    devices: int, gangs: list[tuple[int, str]], split: bool, strategy: str, policy: str, failing: int
) -> None:
    """The host itself checks that no process runs without the locks of all its devices."""
    host = SimulatedHost(
        Settings(
            QUANTUM_SECONDS,
            policy,
            sharing="exclusive",
            placement=PlacementSettings(strategy, tenants=(Tenant("lab"),)),
        )
    )
    for number in range(devices):
        host.add_device(f"d{number}")
    placed = []
    for number, (gpus, group) in enumerate(gangs):
        try:
            own_devices = come(host, f"c{number}", group, gpus=gpus)
        except Refused:
            assert gpus > devices or number > 1
            continue
        placed.append(f"c{number}")
        assert len(set(own_devices)) == gpus
        for part in [(uuid,) for uuid in own_devices] if split else [own_devices]:
            host.add_process(f"c{number}", *part, busy=True)
        if number == 1:
            host.handle_event(ev.DeviceFailed(f"d{failing % devices}", "test"))
    host.run(8 * len(gangs) * QUANTUM_SECONDS)
    for client in placed:
        state = host.scheduler.clients[client]
        assert state.turn_count >= 2 or (state.grant and state.wait_seconds == 0), host.event_log()


CEILING = Tenant("students", limit=0.5, memory=GIB // 2, max_clients=2)


def test_a_running_client_is_within_the_ceilings_whatever_it_asks_for() -> None:
    host = host_with(1, CEILING)
    for name in "abc":
        event = ev.ClientRegistered(name, "1000", quota=Quota(memory=GIB, limit=0.9), tenant="students", running=True)
        host.handle_event(event)
        quota = host.scheduler.clients[name].quota
        assert (quota.memory, quota.limit, quota.service) == (GIB // 2, 0.5, "offline")


def test_a_part_of_a_device_found_later_is_within_the_ceiling() -> None:
    host = host_with(0, CEILING)
    host.handle_event(
        ev.ClientRegistered("a", "1000", quota=Quota(), request=PlacementRequest(fraction=1.0), tenant="students")
    )
    host.add_device("d0")
    host.add_process("a", "d0")
    assert host.scheduler.clients["a"].quota.memory == GIB // 2


def test_ceilings_set_later_bind_what_clients_ask_for_from_then_on() -> None:
    host = host_with(1)
    come(host, "a")
    later = Settings(QUANTUM_SECONDS, "fcfs", sharing="exclusive", placement=PlacementSettings(tenants=(CEILING,)))
    host.handle_event(ev.SettingsChanged(later, {"a": "students"}))
    assert host.scheduler.clients["a"].quota == Quota(), "a keeps its quota"
    with pytest.raises(Refused, match=r"limit=0\.9 is above that of tenant 'students'"):
        host.handle_event(ev.QuotaChanged("a", Quota(memory=GIB // 4, limit=0.9)))
    host.handle_event(ev.QuotaChanged("a", Quota(memory=GIB // 4, limit=0.5)))
    come(host, "b", "students", Quota())
    with pytest.raises(Refused, match="tenant 'students' has 2 clients"):
        come(host, "c", "students", Quota())
