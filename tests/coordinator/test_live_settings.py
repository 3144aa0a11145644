"""Tests of settings: values that are read, changes while a coordinator runs, and refusals of invalid values."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from traitlets import TraitError
from traitlets.config import Config

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.coordinator.config.live_settings import LiveSettings, parse_quota
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.settings.table import PUBLIC
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError

from .conftest import QUANTUM, CoordinatorProcess, ProcessFactory

KEYS = {*PUBLIC, "devices_are_simulated"}


def change(coordinator: CoordinatorProcess, **changes: Any) -> Any:
    return coordinator.request(messages.Config(changes=changes))


def test_settings_are_read(coordinator: CoordinatorProcess) -> None:
    settings = change(coordinator)
    assert settings.keys() == KEYS
    assert settings == coordinator.status()["config"]
    assert (settings["time_quantum"], settings["policy"], settings["simulate"]) == (QUANTUM, "fcfs", False)


def test_levels_follow(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    a = processes("a")
    assert a.control.window_ns == 20_000_000
    change(coordinator, idle_release=2, time_quantum=7.5, inflight_window=0, exempt_launches=0.0001)
    control = a.control
    assert (control.idle_release_ns, control.quantum_ns, control.window_ns) == (2_000_000_000, 7_500_000_000, 0)
    assert control.exempt_ns == 100_000


def test_default_quota_applies_to_new_clients(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    before = processes("before")
    for quota in ({"memory": "1GiB", "limit": 0.5}, "memory=1GiB limit=0.5", "{'memory': '1GiB', 'limit': 0.5}"):
        change(coordinator, default_quota=quota)
        after = processes(f"after{len(str(quota))}", quota="limit=0.25")
        assert (after.control.memory_limit, after.control.limit_ppm) == (1 << 30, 250_000)
    assert before.control.memory_limit == 8 << 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"time_quantum": None}, "time_quantum"),
        ({"default_quota": "memory=="}, "memory: '=' is not a size"),
        ({"default_quota": "{'memory': null}"}, "default_quota"),
        ({"default_quota": "8GiB"}, "default_quota: '8GiB' is not of the form key=value: allowed is for example"),
        ({"device_memory": "1GiB"}, "cannot change while the coordinator runs"),
        ({"parent": 1}, "unknown or cannot change"),
        ({"devices": {"GPU-z": {"policy": "fair"}}}, "devices: 'GPU-z' does not exist"),
        ({"devices": "{'0': {'colour': 1}}"}, "setting 'colour' is unknown"),
        ({"devices": "{'0': "}, "devices"),
        ({"devices.7.policy": "fair"}, "devices: '7' does not exist"),
        ({"devices.0.policy": "lottery"}, "policy='lottery' is unknown"),
        ({"devices.0.colour": ""}, "setting 'colour' is unknown"),
        ({"devices.policy": "fair"}, "'devices.policy' names no setting of a device"),
        ({"time_quantum": 5, "colour": "red"}, "'colour' is unknown"),
        ({"idle_release": 1, "time_quantum": -5}, "allowed are 0.001 to 86400 seconds"),
    ],
    ids=str,
)
def test_invalid_setting_changes_nothing(
    shared_coordinator: CoordinatorProcess, changes: dict[str, Any], words: str
) -> None:
    before = change(shared_coordinator)
    with pytest.raises(CoordinatorError) as error:
        shared_coordinator.request(messages.Config(changes=changes))
    assert error.value.reason == "invalid"
    assert words in str(error.value)
    assert change(shared_coordinator) == before


# For each setting: invalid values, each with a part of its error message.
BAD: dict[str, list[tuple[Any, str]]] = {
    "time_quantum": [(0, "0.001 to 86400"), ("soon", "'auto'"), (True, "True"), (math.nan, "nan")],
    "idle_release": [(86401, "0.001 to 86400"), (True, "True"), ("later", "'auto'")],
    "cell_linger": [(61, "0 to 60"), (True, "True"), ("x", "'x'")],
    "idle_warn": [(0.5, "1 to 604800 seconds, 0 for never, or 'auto'"), ("later", "'auto'"), (True, "True")],
    "idle_evict": [(604801, "1 to 604800 seconds, 0 for never"), ("later", "'auto'"), (math.nan, "nan")],
    "idle_suspend": [(-1, "1 to 604800 seconds, or 0 for never"), ("auto", "auto"), (True, "True")],
    "hibernate_after": [(0.5, "1 to 604800 seconds, or 0 for never"), (True, "True")],
    "wait_move": [(0.05, "0.1 to 86400 seconds, or 0 for never"), ("auto", "auto"), (True, "True")],
    "idle_move": [(0.5, "1 to 604800 seconds, or 0 for never"), ("auto", "auto"), (True, "True")],
    "min_quantum": [(0, "0.001 to 30"), (True, "True")],
    "max_wait": [(0, "1 to 86400"), (math.inf, "inf")],
    "max_hold": [(-1, "0 to 86400"), (True, "True")],
    "overrun": [("kill", "interrupt"), (None, "None")],
    "overrun_patience": [(-1, "0 to 86400"), (math.inf, "inf"), (True, "True")],
    "metrics": [("0.0.0.0:9400", "open:0.0.0.0:9400"), ("unix:relative", "absolute"), (9400, "9400")],
    "usage_kept": [(0, "1 to 36500 days"), (math.inf, "inf"), (True, "True"), ("x", "'x'")],
    "inflight_window": [(11, "0.001 to 10"), (math.nan, "nan"), (True, "True")],
    "exempt_launches": [(-1, "0 to 0.1"), (1, "0 to 0.1"), (True, "True")],
    "policy": [("no such policy", "allowed are"), (3, "3")],
    "sharing": [("never", "exclusive"), (None, "None")],
    "mps": [("on", "off"), (True, "True")],
    "default_quota": [
        ({"share": 2}, "share=2 is out of range"),
        ({"colour": 1}, "allowed are"),
        ("memory", "'memory' is not of the form key=value: allowed is for example 'memory=8GiB share=0.5'"),
        (5, "5"),
    ],
    "device_memory": [("lots", "examples: 8GiB"), (0, "from 1 MiB"), (True, "examples"), (-1, "from 1 MiB")],
    "pinned_memory": [("lots", "examples: 8GiB"), ("16", "counts bytes"), (1.5, "examples")],
    "release_caches": [("sometimes", "sometimes"), (3, "3")],
    "memory_mode": [("tape", "unified"), (None, "None")],
    "placement": [("best", "spread"), (True, "True")],
    "oversubscription": [(0.5, "1 to 1000"), (math.inf, "inf"), (True, "True")],
    "identity": [("name", "cgroup"), (True, "True")],
    "sockets": [
        ({"ada": "here"}, "not an absolute path"),
        ({"a": "/s", "b": "/s"}, "the same socket"),
        ({"": "/a"}, "not a user with a path"),
        (5, "5"),
    ],
    "cgroup_user": [("(", "not a regular expression"), (5, "5")],
    "admins": [([1000], "1000"), (5, "5")],
    "admin_groups": [([True], "True"), (5, "5")],
    "max_connections": [(-1, "1 to 1000000"), (True, "True"), (1.5, "1.5")],
    "max_processes": [(-1, "1 to 1000000"), (True, "True"), ("many", "many")],
    "max_clients": [
        (10**400, "0 for no bound"),
        (-1, "1 to 1000000"),
        (-1.0, "1 to 1000000"),
        (1e300, "1 to 1000000"),
        (True, "True"),
    ],
    "max_messages": [(-1, "1 to 1000000"), (10**9, "1000000")],
    "tenants": [
        ({"a": {"cells": {"rack": 1}}}, "allowed are device, switch"),
        ({"a": 1}, "is not a dictionary"),
        (5, "5"),
    ],
    "devices": [
        ({"0": {"colour": 1}}, "allowed are time_quantum"),
        ({"0": {"max_clients": 1}}, "applies to all devices"),
        ({"0": {"policy": "lottery"}}, "interactive"),
        ({"0": {"time_quantum": -1}}, "0.001 to 86400"),
        ({"0": {"time_quantum": math.nan}}, "nan"),
        ({"0": {"sharing": None}}, "exclusive"),
        ({"": {"sharing": "packed"}}, "allowed are a UUID, an index and a name"),
        ({"0": "fcfs"}, "is no table"),
        (5, "5"),
    ],
    "topology": [("/nowhere.json", "No such file"), (5, "5")],
    "simulate": [("perhaps", "perhaps")],
    "coordinator": [("relative", "is not an absolute path")],
}


@pytest.mark.parametrize("name", sorted(GpuShare.class_trait_names(config=True)))
def test_invalid_setting_is_refused_with_a_reason(name: str) -> None:
    """The check is the same for a configuration file, an option and a request."""
    for value, words in BAD[name]:
        with pytest.raises((TraitError, Refused)) as error:
            LiveSettings(GpuShare(config=Config({"GpuShare": {name: value}})))
        assert name in str(error.value) and words in str(error.value)


def test_a_word_that_is_no_boolean_is_named() -> None:
    with pytest.raises(Refused, match="release_caches='perhaps' is unknown: allowed are true and false"):
        LiveSettings(GpuShare()).with_changes({"release_caches": "perhaps"})


def test_times_may_have_units() -> None:
    settings = LiveSettings(GpuShare(max_wait="5min")).with_changes({"time_quantum": "30s", "idle_release": " Auto"})
    assert (
        settings.core_settings().max_wait,
        settings.core_settings().time_quantum,
        settings.core_settings().idle_release,
    ) == (300, 30, "auto")


def test_a_quota_in_a_file_may_be_a_text() -> None:
    quota = LiveSettings(
        GpuShare(config=Config({"GpuShare": {"default_quota": "memory=8GiB, limit=90%"}}))
    ).default_quota
    assert (quota.memory, quota.limit) == (8 << 30, 0.9)


def test_sizes_may_be_numbers_of_bytes() -> None:
    assert LiveSettings(GpuShare(device_memory=4 << 30)).cap_memory(DeviceInfo("u", memory=8 << 30)).memory == 4 << 30


def test_memory_of_a_device_can_be_capped(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    idle_coordinator.start("--device-memory=4GiB")
    a = processes("a")
    assert (a.control.memory_limit, a.control.memory_total) == (4 << 30, 4 << 30)
    assert idle_coordinator.status()["devices"][0]["memory_total"] == 4 << 30


def test_cap_above_the_device_memory_has_no_effect() -> None:
    settings = LiveSettings(GpuShare(device_memory="16GiB"))
    assert settings.cap_memory(DeviceInfo("u", memory=8 << 30)).memory == 8 << 30
    assert settings.cap_memory(DeviceInfo("u", memory=32 << 30)).memory == 16 << 30


def test_options_for_another_coordinator_mean_the_same() -> None:
    traits = GpuShare(
        time_quantum=2.5, default_quota={"memory": "8GiB", "resident": None}, device_memory="4GiB", simulate=True
    )
    options = Config()
    for option in traits.argv():
        name, _, value = option.removeprefix("--GpuShare.").partition("=")
        options.GpuShare[name] = GpuShare().traits()[name].from_string(value)
    again = GpuShare(config=options)
    for name in KEYS - {"devices_are_simulated"}:
        assert getattr(again, name) == getattr(traits, name), name


def test_quotas_with_units() -> None:
    assert parse_quota({"share": "50%", "memory": "8GiB", "resident": "unlimited", "limit": 1}) == {
        "share": 0.5, "memory": 8 << 30, "resident": None, "limit": 1.0
    }  # fmt: skip
    for written, words in (
        ({"limit": "none"}, "limit needs a value"),
        ({"share": None}, "share needs a value"),
        ({"memory": "many"}, "'many' is not a size (examples: 8GiB"),
        ({"memory": "9" * 400 + ".5GiB"}, "too large for a size"),
        ({"share": "lots"}, "share: 'lots' is not a fraction"),
        ({"share": [0.5]}, "is not a fraction"),
    ):
        with pytest.raises(Refused, match=re.escape(words)):
            parse_quota(written)
