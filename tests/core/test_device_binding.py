"""Tests of the devices that a client gets at its first CUDA call, by the work of other clients at that time."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev

from .conftest import MakeHost
from .simulated_host import SimulatedHost
from .test_placement_adapter import come, host_with


def request_devices(host: SimulatedHost, client: str) -> tuple[str, ...]:
    host.handle_event(ev.DevicesRequested(client))
    return host.scheduler.clients[client].devices


def run_cell(host: SimulatedHost, client: str, device: str) -> None:
    """Let a notebook run a cell of one second on the device, and keep its turn afterwards."""
    process = host.add_process(client, device)
    host.run_cell(process, 1.0)
    host.run(1.5)


@pytest.fixture
def one_busy(make_host: MakeHost) -> SimulatedHost:
    """Return a host whose device d0 has a client at work, and whose device d1 has a client without work."""
    host = make_host("d0", "d1")
    host.add_process("works", "d0", busy=True)
    host.add_process("idle", "d1")
    return host


def test_a_client_gets_the_device_without_work(one_busy: SimulatedHost) -> None:
    one_busy.add_client("new")
    assert one_busy.scheduler.clients["new"].devices == ("d0",), "the first of two devices with a client each"
    assert request_devices(one_busy, "new") == ("d1",)
    one_busy.add_process("new", "d1", busy=True)
    assert (one_busy.running("d0"), one_busy.running("d1")) == ("works", "new")
    one_busy.add_client("later")
    assert one_busy.scheduler.clients["later"].devices == ("d0",), "a registration counts clients only"


def test_a_client_that_waits_is_at_work(one_busy: SimulatedHost) -> None:
    one_busy.add_process("new", "d1", busy=True)
    one_busy.add_process("waits", "d1", busy=True)
    one_busy.add_client("last")
    assert request_devices(one_busy, "last") == ("d0",)


def test_work_of_the_last_minute_counts_less_than_present_work(one_busy: SimulatedHost) -> None:
    """A notebook keeps the turn of its cell on a device that no other client waits for, which is no work."""
    run_cell(one_busy, "notebook", "d1")
    one_busy.add_client("new")
    assert request_devices(one_busy, "new") == ("d1",)


def test_work_counts_for_a_minute(make_host: MakeHost) -> None:
    host = make_host("d0", "d1")
    for client in ("b", "c"):
        host.add_process(client, "d1")
    run_cell(host, "a", "d0")
    host.add_client("new")
    assert request_devices(host, "new") == ("d1",)
    host.run(61.0)
    assert request_devices(host, "new") == ("d0",)


def test_a_client_that_has_just_got_its_devices_counts(make_host: MakeHost) -> None:
    host = make_host("d0", "d1")
    for client in ("a", "b"):
        host.add_client(client)
    assert [request_devices(host, client) for client in ("a", "b")] == [("d0",), ("d1",)]
    for client in ("c", "d"):
        host.add_client(client)
        host.handle_event(ev.DevicesRequested(client))
    assert {host.scheduler.clients[client].devices for client in "cd"} == {("d0",), ("d1",)}


def test_all_processes_of_a_client_get_the_same_devices(one_busy: SimulatedHost) -> None:
    """The second process requests devices before and after the first process has joined."""
    one_busy.add_client("new")
    assert request_devices(one_busy, "new") == ("d1",)
    for client in ("e", "f"):
        one_busy.add_process(client, "d1", busy=True)
    assert request_devices(one_busy, "new") == ("d1",)
    one_busy.add_process("new", "d1")
    one_busy.run(20.0)
    assert request_devices(one_busy, "new") == ("d1",)


def test_a_restarted_kernel_gets_another_device(one_busy: SimulatedHost) -> None:
    process = one_busy.add_process("new", "d0", busy=True)
    one_busy.kill_process(process)
    assert request_devices(one_busy, "new") == ("d1",)


def test_the_request_of_the_client_still_holds(one_busy: SimulatedHost) -> None:
    come(one_busy, "named", devices=("d0",))
    assert request_devices(one_busy, "named") == ("d0",)
    come(one_busy, "pair", affinity="pair")
    come(one_busy, "other", affinity="pair")
    assert request_devices(one_busy, "other") == one_busy.scheduler.clients["pair"].devices
    come(one_busy, "gang", gpus=2)
    assert request_devices(one_busy, "gang") == ("d0", "d1")


def test_a_client_keeps_its_device_if_no_device_suits_it() -> None:
    host = host_with(2)
    come(host, "a", quota=Quota(share=0.6))
    come(host, "b", quota=Quota(share=0.6))
    before = host.scheduler.clients["a"].devices
    host.handle_event(ev.DeviceFailed("d0", "fan"))
    assert request_devices(host, "a") == before
    assert host.scheduler.clients["a"].quota.share == 0.6


def test_memory_as_a_fraction_follows_the_device() -> None:
    host = host_with(1)
    come(host, "a", fraction=0.5)
    half = host.scheduler.clients["a"].quota.memory
    assert half
    host.handle_event(ev.DeviceFailed("d0", "fan"))
    host.add_device("d1")
    assert request_devices(host, "a") == ("d1",)
    assert host.scheduler.clients["a"].quota.memory == half
