"""Placement and the scheduler together: who is refused, who gives way, who is told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_gpushare.core import commands as cmd
from jupyter_gpushare.core import events as ev
from jupyter_gpushare.core.errors import Refused, TooManyDevices
from jupyter_gpushare.core.placement import PlacementSettings, Request, Tenant
from jupyter_gpushare.core.quota import Quota
from jupyter_gpushare.core.settings import Settings

from ..support import tier
from .conftest import QUANTUM
from .world import World

GIB = 1 << 30  # what a device of the world has


def world_of(devices: int, *tenants: Tenant, sharing: str = "exclusive", **more: Any) -> World:
    world = World(Settings(QUANTUM, "fcfs", sharing=sharing, placement=PlacementSettings(tenants=tenants, **more)))
    for number in range(devices):
        world.device(f"d{number}")
    return world


def come(world: World, client: str, group: str = "", quota: Quota | None = None, **request: Any) -> tuple[str, ...]:
    wanted = Request(**request)
    world.feed(ev.ClientRegistered(client, "1000", client, quota or Quota(), wanted.gpus, wanted, group))
    return world.scheduler.clients[client].devices


def notices(world: World) -> list[tuple[str, str]]:
    return [(command.client, command.message) for command in world.commands if isinstance(command, cmd.Notice)]


def test_a_part_of_a_device_is_a_number_of_bytes() -> None:
    world = world_of(2)
    come(world, "a", fraction=0.25)
    assert world.scheduler.clients["a"].quota.memory == GIB // 4
    come(world, "b", fraction=0.5, gpus=2)
    assert world.scheduler.clients["b"].quota.memory == GIB


def test_memory_fraction_is_resolved_with_the_device() -> None:
    world = world_of(0)
    assert come(world, "a", fraction=0.25) == ()
    world.device("d0")
    world.process("a", "d0")
    assert world.scheduler.clients["a"].quota.memory == GIB // 4


def test_a_refused_client_leaves_nothing_behind() -> None:
    world = world_of(1)
    come(world, "a", quota=Quota(share=0.6))
    for _ in range(2):
        with pytest.raises(Refused, match=r"has 0.4 of its share left"):
            come(world, "b", quota=Quota(share=0.5))
        with pytest.raises(TooManyDevices):
            come(world, "c", gpus=2)
    assert set(world.scheduler.clients) == {"a"}
    world.process("a", "d0")
    assert come(world, "b", quota=Quota(share=0.4)) == ("d0",)


def test_running_client_is_accepted_without_a_missing_share() -> None:
    world = world_of(1)
    come(world, "a", quota=Quota(share=0.6))
    world.feed(ev.ClientRegistered("fits", "1000", quota=Quota(share=0.3), running=True))
    world.feed(ev.ClientRegistered("back", "1000", quota=Quota(share=0.5), running=True))
    world.process("back", "d0")
    quotas = [world.scheduler.clients[name].quota for name in ("fits", "back")]
    assert quotas == [Quota(share=0.3), Quota(service="offline")]
    assert [client for client, said in notices(world) if "has 0.1 of its share left" in said] == ["back"]
    world.feed(ev.ClientForgotten("a"))
    world.feed(ev.QuotaChanged("back", Quota(share=0.5)))
    assert world.scheduler.clients["back"].quota == Quota(share=0.5)


def test_client_beyond_the_tenants_count_stays_offline() -> None:
    """Who runs already is not turned away, but neither does it come in by the back door."""
    world = world_of(1, Tenant("students", max_clients=1))
    come(world, "a", "students")
    world.feed(ev.ClientRegistered("b", "1000", group="students", running=True))
    for quota in (Quota(), Quota(memory=1)):
        with pytest.raises(Refused, match="tenant 'students' has 2 clients: allowed are 1, and this one came when"):
            world.feed(ev.QuotaChanged("b", quota))
    world.feed(ev.QuotaChanged("b", Quota(memory=1, service="offline")))
    for service in ("offline", "online"):
        world.feed(ev.QuotaChanged("a", Quota(service=service)))
    world.feed(ev.ClientForgotten("a"))
    world.feed(ev.QuotaChanged("b", Quota()))
    assert world.scheduler.clients["b"].quota == Quota()


def test_a_share_counts_on_every_device_that_the_client_uses() -> None:
    world = world_of(3, Tenant("students", share=1.0))
    come(world, "a", "students", quota=Quota(share=0.4))
    world.process("a", "d0", "d1")
    assert world.scheduler.clients["a"].quota.share == 0.4
    with pytest.raises(Refused, match=r"0.8 of 1 are taken, allowed is up to 0.2"):
        come(world, "b", "students", quota=Quota(share=0.3))
    with pytest.raises(Refused, match=r"share=0.6 of 2 devices is above"):
        world.feed(ev.QuotaChanged("a", Quota(share=0.6)))
    world.process("a", "d2")
    assert world.scheduler.clients["a"].quota.share == 0.0
    assert [client for client, said in notices(world) if "no guaranteed share" in said] == ["a"]
    assert come(world, "b", "students", quota=Quota(share=1.0))


def test_a_guest_is_interrupted_at_once_when_the_owner_wants_its_device() -> None:
    world = world_of(1, Tenant("lab", cells={"device": 1}))
    come(world, "guest")
    guest = world.process("guest", "d0", busy=True)
    world.run(0.1 * QUANTUM)
    assert guest.gate == "open"
    come(world, "owner", "lab")
    assert guest.gate == "open", "the owner does not use it yet"
    world.process("owner", "d0", busy=True)
    assert world.run_until(lambda: world.running("d0") == "owner") == 0
    world.run(5 * QUANTUM)
    assert world.scheduler.clients["guest"].gpu_seconds == pytest.approx(0.1 * QUANTUM), "the owner is never idle"


def test_a_guest_runs_while_the_owner_is_idle_and_is_no_guest_when_it_has_gone() -> None:
    world = world_of(1, Tenant("lab", cells={"device": 1}))
    come(world, "guest")
    come(world, "owner", "lab")
    world.process("guest", "d0", busy=True)
    assert world.running("d0") == "guest"
    assert world.scheduler.clients["guest"].rank == 1
    world.feed(ev.ClientForgotten("owner"))
    assert world.scheduler.clients["guest"].rank == 0


def test_failed_device_notifies_its_clients_and_gets_no_new_ones() -> None:
    world = world_of(2)
    come(world, "a")
    come(world, "b")
    world.feed(ev.DeviceFailed("d0", "Xid 79"))
    world.feed(ev.DeviceFailed("d0", "Xid 79"))
    assert notices(world) == [("a", "device d0 has failed: Xid 79; a restarted kernel gets another one")]
    assert come(world, "c") == ("d1",)
    world.feed(ev.DeviceRecovered("d0"))
    world.feed(ev.DeviceRecovered("d0"))
    assert notices(world)[1:] == [("a", "device d0 works again")]
    assert come(world, "d") == ("d0",)


def test_a_program_that_starts_anew_leaves_a_failed_device() -> None:
    world = world_of(2)
    come(world, "a")
    process = world.process("a", "d0")
    world.feed(ev.DeviceFailed("d0", "Xid 79"))
    assert come(world, "a") == ("d0",), "it runs there"
    world.kill(process)
    assert come(world, "a") == ("d1",)
    world.feed(ev.DeviceFailed("d1", "Xid 79"))
    assert come(world, "a") == ("d1",), "there is no better one"


def test_tenants_are_changed_live_or_refused_whole() -> None:
    world = world_of(2)
    come(world, "guest")
    world.process("guest", "d0", busy=True)
    before = world.scheduler.settings
    too_many = PlacementSettings(tenants=(Tenant("lab", cells={"device": 3}),))
    with pytest.raises(Refused, match="more cells than there are: 3 device"):
        world.feed(ev.SettingsChanged(Settings(QUANTUM, "fair", placement=too_many)))
    assert world.scheduler.settings is before
    both = PlacementSettings(tenants=(Tenant("lab", cells={"device": 2}),))
    world.feed(ev.SettingsChanged(Settings(QUANTUM, "fcfs", placement=both)))
    assert come(world, "owner", "lab") == ("d1",)


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
    """The world itself watches that nobody runs without the locks of all its devices."""
    world = World(
        Settings(QUANTUM, policy, sharing="exclusive", placement=PlacementSettings(strategy, tenants=(Tenant("lab"),)))
    )
    for number in range(devices):
        world.device(f"d{number}")
    there = []
    for number, (gpus, group) in enumerate(gangs):
        try:
            mine = come(world, f"c{number}", group, gpus=gpus)
        except Refused:
            assert gpus > devices or number > 1
            continue
        there.append(f"c{number}")
        assert len(set(mine)) == gpus
        for part in [(uuid,) for uuid in mine] if split else [mine]:
            world.process(f"c{number}", *part, busy=True)
        if number == 1:
            world.feed(ev.DeviceFailed(f"d{failing % devices}", "test"))
    world.run(8 * len(gangs) * QUANTUM)
    for client in there:
        one = world.scheduler.clients[client]
        assert one.quanta >= 2 or (one.grant and one.wait_seconds == 0), world.story()


CEILING = Tenant("students", limit=0.5, memory=GIB // 2, max_clients=2)


def test_a_running_client_is_within_the_ceilings_whatever_it_asks_for() -> None:
    world = world_of(1, CEILING)
    for name in "abc":
        event = ev.ClientRegistered(name, "1000", quota=Quota(memory=GIB, limit=0.9), group="students", running=True)
        world.feed(event)
        quota = world.scheduler.clients[name].quota
        assert (quota.memory, quota.limit, quota.service) == (GIB // 2, 0.5, "offline")


def test_a_part_of_a_device_found_later_is_within_the_ceiling() -> None:
    world = world_of(0, CEILING)
    world.feed(ev.ClientRegistered("a", "1000", quota=Quota(), request=Request(fraction=1.0), group="students"))
    world.device("d0")
    world.process("a", "d0")
    assert world.scheduler.clients["a"].quota.memory == GIB // 2


def test_ceilings_set_later_bind_what_clients_ask_for_from_then_on() -> None:
    world = world_of(1)
    come(world, "a")
    later = Settings(QUANTUM, "fcfs", sharing="exclusive", placement=PlacementSettings(tenants=(CEILING,)))
    world.feed(ev.SettingsChanged(later, {"a": "students"}))
    assert world.scheduler.clients["a"].quota == Quota(), "what it has it keeps"
    with pytest.raises(Refused, match=r"limit=0\.9 is above that of tenant 'students'"):
        world.feed(ev.QuotaChanged("a", Quota(memory=GIB // 4, limit=0.9)))
    world.feed(ev.QuotaChanged("a", Quota(memory=GIB // 4, limit=0.5)))
    come(world, "b", "students", Quota())
    with pytest.raises(Refused, match="tenant 'students' has 2 clients"):
        come(world, "c", "students", Quota())
