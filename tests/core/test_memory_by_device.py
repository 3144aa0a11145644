"""Tests of clients with different memory on each of their devices."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.memory_use import MemoryUse
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.colocation.memory_fit import memory_needed
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .simulated_host import SimulatedHost, host_of

MIB = 1 << 20


@pytest.fixture
def host() -> SimulatedHost:
    """Return a host with two devices of 1 GiB each."""
    return host_of("d", "e")


def report(host: SimulatedHost, client: str, unmet: str = "", **mib: int | tuple[int, int]) -> list[cmd.Command]:
    """Report the MiB on each device: the allocated memory, or allocated and resident memory."""
    pairs = {uuid: size if isinstance(size, tuple) else (size, size) for uuid, size in mib.items()}
    parts = {
        uuid: MemoryUse(allocated * MIB, resident * MIB, unmet=100 * MIB if uuid == unmet else 0)
        for uuid, (allocated, resident) in pairs.items()
    }
    allocated, resident = (sum(pair[n] for pair in pairs.values()) * MIB for n in (0, 1))
    return host.handle_event(
        ev.MemoryReported(client, allocated, resident, unmet_bytes=100 * MIB if unmet else 0, by_device=parts)
    )


def targets(host: SimulatedHost, client: str) -> tuple[int | None, int | None]:
    """Return the MiB that the client may keep on each device; None: all memory."""
    found = [host.scheduler.residency.target(client, uuid) for uuid in ("d", "e")]
    first, second = (None if size is None else size // MIB for size in found)
    return first, second


def test_memory_counts_on_its_device(host: SimulatedHost) -> None:
    host.add_process("wide", "d", "e")
    report(host, "wide", d=300, e=(200, 50))
    devices = host.scheduler.devices
    assert [(devices[uuid].allocated // MIB, devices[uuid].resident // MIB) for uuid in ("d", "e")] == [
        (300, 300),
        (200, 50),
    ]
    host.add_process("wide", "d")
    assert devices["e"].resident == 50 * MIB, "memory stays on its device when a process joins"


def test_only_the_short_device_evicts(host: SimulatedHost) -> None:
    host.add_process("wide", "d", "e")
    report(host, "wide", d=700, e=300)
    host.add_process("narrow", "d", busy=True)
    commands = report(host, "narrow", d=(600, 0))
    assert targets(host, "wide") == (1024 - 600, None)
    assert [(one.client, one.device) for one in commands if isinstance(one, cmd.SetResident)] == [("wide", "d")]


def test_a_turn_on_two_devices_evicts_on_the_short_one_only(host: SimulatedHost) -> None:
    """The client of the ended turn has most of its memory on the device that has room."""
    host.add_process("wide", "d", "e", busy=True)
    report(host, "wide", d=200, e=800)
    host.add_process("other", "d", "e", waiting=True)
    report(host, "other", d=(900, 0), e=(100, 0))
    assert targets(host, "wide") == (1024 - 900, None)


def test_a_shortage_counts_on_its_device(host: SimulatedHost) -> None:
    for name in ("first", "second"):
        host.add_process(name, "d", "e")
        report(host, name, d=100, e=100)
    host.add_process("runs", "d", "e", busy=True)
    report(host, "runs", d=200, e=200, unmet="e")
    assert [targets(host, name) for name in ("first", "second")] == [(None, 0), (None, None)]


def test_memory_comes_back_ahead_on_the_device_with_room(host: SimulatedHost) -> None:
    host.add_process("runs", "d", "e", busy=True)
    report(host, "runs", d=1024, e=100)
    host.add_process("waits", "d", "e", waiting=True)
    report(host, "waits", d=(100, 0), e=(100, 0))
    prefetches = [command for command in host.commands if isinstance(command, cmd.Prefetch)]
    assert prefetches == [cmd.Prefetch("waits", "e", True)]


def test_the_quota_is_divided_like_the_memory(host: SimulatedHost) -> None:
    host.add_client("wide", Quota(resident=400 * MIB), gpus=2)
    host.add_process("wide", "d", "e")
    report(host, "wide", d=600, e=200)
    host.add_process("other", "d", "e", busy=True)
    host.add_process("third", "d", "e", waiting=True)
    assert targets(host, "wide") == (300, 100)


def test_the_memory_of_a_colocated_client_is_needed_where_it_is(host: SimulatedHost) -> None:
    host.add_process("wide", "d", "e")
    report(host, "wide", d=900, e=100)
    client, devices = host.scheduler.clients["wide"], host.scheduler.devices
    assert [memory_needed(devices[uuid], client) // MIB for uuid in ("d", "e")] == [900, 100]


def test_the_part_of_a_device_is_never_more_than_the_whole(host: SimulatedHost) -> None:
    """A process may change its page between two readings, so that its sum is smaller than its memory on one device."""
    host.start_client("a", busy=False)
    part = {"d": MemoryUse(1 << 40, 1 << 40)}
    host.handle_event(ev.MemoryReported("a", 1, 1, by_device=part))
    client = host.scheduler.clients["a"]
    assert client.part_on(host.scheduler.devices["d"], 1 << 40) == 1 << 40
    assert client.part_on(host.scheduler.devices["e"], 1 << 40) == 0
