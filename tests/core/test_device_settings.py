"""Tests of settings of single devices: each device obeys its own, and all other devices obey those of the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.core.placement.request import match_devices
from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.settings.table import PER_DEVICE, SETTINGS

from .simulated_host import SimulatedHost, baseline, host_of
from .simulated_process import OPEN
from .test_idle_policy import used
from .test_illegal_events import frozen

QUARTER = 1 << 28  # of a device

OTHER_VALUES: dict[str, Any] = {
    "time_quantum": 2.0,
    "policy": "fair",
    "idle_release": 1.5,
    "cell_linger": 3.0,
    "idle_warn": 7.0,
    "idle_evict": 8.0,
    "idle_suspend": 9.0,
    "idle_move": 10.0,
    "wait_move": 5.0,
    "hibernate_after": 10.0,
    "sharing": "packed",
    "min_quantum": 0.5,
    "max_wait": 11.0,
    "max_hold": 12.0,
    "overrun": "join",
    "overrun_patience": 13.0,
}


def two_devices(own: dict[str, Any], **settings: Any) -> SimulatedHost:
    """Return a host with the devices "x" and "y", of which "y" has settings of its own."""
    return host_of("x", "y", devices={"y": own}, **settings)


def configure(host: SimulatedHost, **settings: Any) -> None:
    host.handle_event(ev.SettingsChanged(replace(host.scheduler.settings, **settings)))


def settings_on(host: SimulatedHost, uuid: str) -> Settings:
    return host.scheduler.devices[uuid].settings


def busy_on(host: SimulatedHost, uuid: str, *clients: str) -> None:
    for client in clients:
        host.add_client(client, user=client)
        host.add_process(client, uuid, busy=True)
        host.report_memory(client, QUARTER)


# --- the settings of a device


def test_each_setting_has_a_case() -> None:
    assert OTHER_VALUES.keys() == set(PER_DEVICE)


@pytest.mark.parametrize("name", PER_DEVICE)
def test_each_setting_of_a_device_replaces_the_hosts(name: str) -> None:
    host = two_devices({name: OTHER_VALUES[name]})
    host.add_process("a", "x"), host.add_process("b", "y")
    on_x, on_y = (host.scheduler.settings_of(host.scheduler.clients[client]) for client in "ab")
    assert on_x == baseline() and on_y == replace(baseline(), **{name: OTHER_VALUES[name]})
    configure(host, devices={})
    assert settings_on(host, "y") == baseline()


@pytest.mark.parametrize("word", ["GPU-1f2e3d", "1", "GPU-1f", "H200", "nvidia h200"])
def test_a_device_is_named_by_uuid_index_or_name(word: str) -> None:
    host = SimulatedHost(baseline(devices={word: {"max_wait": 60.0}}))
    for uuid, name in (("GPU-0a1b2c", "NVIDIA H100"), ("GPU-1f2e3d", "NVIDIA H200")):
        host.handle_event(ev.DeviceFound(DeviceInfo(uuid, name, 1 << 30)))
    assert settings_on(host, "GPU-0a1b2c").max_wait == baseline().max_wait
    assert settings_on(host, "GPU-1f2e3d").max_wait == 60.0


@pytest.mark.parametrize("word", ["2", "200", "00", "i", "20"])
def test_neither_an_index_nor_single_letters_are_parts_of_a_name(word: str) -> None:
    host = SimulatedHost(baseline())
    for uuid in ("GPU-0a1b2c", "GPU-1f2e3d"):
        host.handle_event(ev.DeviceFound(DeviceInfo(uuid, "NVIDIA H200", 1 << 30)))
    with pytest.raises(Refused, match=f"devices: '{word}' does not exist"):
        configure(host, devices={word: {"policy": "fcfs"}})


@pytest.mark.parametrize(("word", "found"), [("l4", ["GPU-0a1b2c"]), ("L40", ["GPU-1f2e3d"]), ("L", [])])
def test_a_short_part_of_a_name_is_a_whole_word(word: str, found: list[str]) -> None:
    assert match_devices(word, [("GPU-0a1b2c", "0", "NVIDIA L4"), ("GPU-1f2e3d", "1", "NVIDIA L40S")]) == found


def test_of_several_entries_for_a_device_the_last_one_counts() -> None:
    host = host_of("x", "y", devices={"y": {"max_wait": 60.0, "policy": "fair"}, "1": {"max_wait": 70.0}})
    assert (settings_on(host, "y").max_wait, settings_on(host, "y").policy) == (70.0, "fair")


def test_an_entry_waits_for_its_device() -> None:
    host = host_of("x", devices={"y": {"policy": "fair"}})
    assert host.scheduler.unknown_devices(host.scheduler.settings) == ["y"]
    configure(host, max_wait=60.0)  # another change is no reason to refuse the entry
    host.add_device("y")
    assert host.scheduler.unknown_devices(host.scheduler.settings) == []
    assert (settings_on(host, "y").policy, settings_on(host, "x").policy) == ("fair", "fcfs")


@pytest.mark.parametrize(
    ("devices", "words"),
    [
        ({"z": {"policy": "fair"}}, "'z' does not exist: allowed are UUIDs, indexes and names of .*x.*; .*y"),
        ({"7": {"policy": "fair"}}, "'7' does not exist"),
        ({"y": {"colour": "red"}}, "setting 'colour' is unknown: allowed are time_quantum, policy"),
        ({"y": {"placement": "pack"}}, "setting 'placement' applies to all devices: allowed are"),
        ({"y": {"policy": "lottery"}}, "devices: y: policy='lottery' is unknown: allowed are interactive"),
        ({"y": {"max_wait": 0}}, "devices: y: max_wait=0 is out of range: allowed are 1 to 86400 seconds"),
        ({"y": "fcfs"}, "devices: y: 'fcfs' is no table"),
        ({True: {}}, "True is no device"),
        (["y"], "is no table"),
    ],
    ids=str,
)
def test_a_wrong_entry_is_refused_and_changes_nothing(devices: Any, words: str) -> None:
    host = two_devices({"policy": "fair"})
    busy_on(host, "y", "a", "b")
    before = frozen(host.scheduler)
    with pytest.raises(Refused, match=words):
        configure(host, devices=devices)
    assert frozen(host.scheduler) == before


# --- their effect


def test_turns_have_the_quantum_of_their_device() -> None:
    host = two_devices({"time_quantum": 2.0}, time_quantum=20.0)
    busy_on(host, "x", "a", "b")
    busy_on(host, "y", "c", "d")
    host.run(100)
    turns = {name: client.turn_count for name, client in host.scheduler.clients.items()}
    assert turns["a"] + turns["b"] in (5, 6) and turns["c"] + turns["d"] in (50, 51)


def test_clients_are_colocated_on_one_device_only() -> None:
    host = two_devices({"sharing": "packed"})
    busy_on(host, "x", "a", "b")
    busy_on(host, "y", "c", "d")
    host.run(1.0)
    assert [process.gate == OPEN for process in host.processes.values()] == [True, False, True, True]
    configure(host, devices={"x": {"sharing": "packed"}})
    host.run(31.0)
    assert [process.gate == OPEN for process in host.processes.values()] in (
        [True, True, True, False],
        [True, True, False, True],
    )


def test_each_device_has_the_order_of_its_policy() -> None:
    """On one device a client has computed for long; where its policy counts that, a newcomer is next before it."""
    host = two_devices({"policy": "interactive", "time_quantum": "auto"})
    for uuid in "xy":
        busy_on(host, uuid, f"first {uuid}", f"second {uuid}")
    host.run(100)
    for uuid in "xy":
        host.add_process(f"new {uuid}", uuid, waiting=True)
    assert [host.queue(uuid)[0] for uuid in "xy"] == [host.queue("x")[0], "new y"]
    assert host.queue("x")[0] != "new x"


def test_a_share_counts_where_the_policy_reads_it() -> None:
    host = two_devices({"policy": "fair", "time_quantum": 1.0}, time_quantum=1.0)
    for uuid in "xy":
        for name, share in (("large", 0.75), ("small", 0.25)):
            host.add_client(f"{name} {uuid}", Quota(share=share))
            host.add_process(f"{name} {uuid}", uuid, busy=True)
    host.run(200)
    assert host.granted_seconds("x")["large x"] / 200 == pytest.approx(0.5, abs=0.05)
    assert host.granted_seconds("y")["large y"] / 200 == pytest.approx(0.75, abs=0.05)


def test_a_limit_holds_unless_the_policy_of_the_device_ignores_it() -> None:
    host = two_devices({"policy": "best_effort"}, time_quantum=1.0)
    for uuid in "xy":
        host.add_client(uuid, Quota(limit=0.5))
        host.add_process(uuid, uuid, busy=True)
    host.run(200)
    assert host.granted_seconds("x")["x"] / 200 == pytest.approx(0.5, abs=0.05)
    assert host.granted_seconds("y")["y"] == pytest.approx(200, abs=1)


def test_a_client_that_waits_too_long_is_first_on_its_device_only() -> None:
    host = two_devices({"max_wait": 5.0}, policy="interactive", max_wait=86400.0)
    for uuid in "xy":
        busy_on(host, uuid, f"runs {uuid}")
        host.add_client(f"waits {uuid}", Quota(), user="w")
        host.run(100)
        host.add_process(f"waits {uuid}", uuid, waiting=True)
    starts = {uuid: host.scheduler.devices[uuid].queue.starvation_deadline(0) for uuid in "xy"}
    assert starts["x"] - starts["y"] > 80000 or starts == {"x": float("inf"), "y": float("inf")}


def test_a_hold_is_as_long_as_the_device_allows() -> None:
    host = two_devices({"max_hold": 5.0}, max_hold=60.0)
    host.add_process("a", "x"), host.add_process("b", "y")
    host.handle_event(ev.HoldRequested("a", 60.0))
    with pytest.raises(Refused, match="allowed are 0 to 5 seconds"):
        host.handle_event(ev.HoldRequested("b", 60.0))


def test_idle_clients_are_suspended_on_one_device_only() -> None:
    host = SimulatedHost(baseline(devices={"y": {"idle_suspend": 100.0}}))
    for uuid in "yx":  # processes of `used` are on the first device
        host.devices = []
        host.add_device(uuid)
        used(host, f"on {uuid}")
    host.run(200)
    assert (host.phase("on x"), host.phase("on y")) == ("idle", "suspended")


def test_an_overrun_is_joined_on_one_device_only() -> None:
    host = two_devices({"overrun": "join", "overrun_patience": 1.0}, time_quantum=1.0)
    for uuid in "xy":
        host.add_process(f"stuck {uuid}", uuid, drains_in=1000.0, waiting=True)
        host.add_process(f"next {uuid}", uuid, busy=True)
    host.run(60)
    assert (host.phase("stuck x"), host.phase("stuck y")) == ("overrun", "overrun")
    assert (host.phase("next x"), host.phase("next y")) == ("waiting", "running")


# --- changes of devices and settings


def test_a_client_that_gets_another_device_obeys_its_settings() -> None:
    host = two_devices({"policy": "fixed_share", "time_quantum": 2.0})
    host.add_client("a", Quota(share=0.5))
    process = host.add_process("a", "x", busy=True)
    host.run(10)
    host.kill_process(process)
    host.commands.clear()
    host.add_process("a", "y", busy=True)
    client = host.scheduler.clients["a"]
    assert (host.scheduler.quantum(client), client.time_limit and client.time_limit.limit) == (2.0, 0.5)
    assert cmd.UpdateQuota("a") in host.commands
    since = host.now
    host.run(100)
    assert host.granted_seconds("y", since)["a"] / 100 == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("policy", ["fair", "interactive"])
def test_use_counts_when_a_device_gets_and_loses_settings_of_its_own(policy: str) -> None:
    """The client that has used the device for long waits, although the device has another policy object since."""
    host = host_of("x", "y", policy=policy, time_quantum=1.0)
    for name in ("old", "new"):
        host.add_client(name, user=name)
    host.add_process("old", "y", busy=True)
    host.add_process("other", "y", busy=True)
    host.run(100)
    for devices in ({"y": {"min_quantum": 0.2}}, {}):
        before = {
            name: host.scheduler.turns.table.policies.policy_of(host.scheduler.clients[name]) for name in ("old",)
        }
        keys = [before["old"].key(host.scheduler.clients["old"])]
        configure(host, devices=devices)
        after = host.scheduler.turns.table.policies.policy_of(host.scheduler.clients["old"])
        keys.append(after.key(host.scheduler.clients["old"]))
        assert after is not before["old"] and keys[0] == keys[1] > 10.0


@pytest.mark.parametrize("on_y", sorted(POLICIES))
@pytest.mark.parametrize("on_x", ["fcfs", "interactive"])
def test_a_gang_on_devices_of_different_policies_has_its_turns(on_x: str, on_y: str) -> None:
    host = two_devices({"policy": on_y}, policy=on_x, time_quantum=0.5, max_wait=86400.0)
    busy_on(host, "x", "a", "b")
    busy_on(host, "y", "c", "d")
    host.run(2)
    host.add_process("gang", "x", "y", busy=True)
    for _ in range(3):
        before = {name: client.turn_count for name, client in host.scheduler.clients.items()}
        host.run(25)
        for name, client in host.scheduler.clients.items():
            assert client.turn_count > before[name], f"{name} had no turn in 25 s\n{host.event_log()}"


def test_a_removed_client_leaves_nothing_in_any_policy() -> None:
    host = two_devices({"policy": "interactive"}, policy="fair")
    process = host.add_process("gang", "x", "y", busy=True)
    host.run(5)
    host.kill_process(process)
    host.handle_event(ev.ClientRemoved("gang"))
    for policy in host.scheduler.turns.table.policies.all():
        assert "gang" not in str(frozen(policy))


def test_defaults_are_those_of_the_table() -> None:
    assert Settings().devices == SETTINGS["devices"].default == {}
