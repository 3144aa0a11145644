"""Tests of reports of hostile processes: control characters in texts, and pages that change during a computation."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_gpushare.agent.pages import create_memfd
from jupyter_gpushare.coordinator.clients.client_runtime import ClientRuntime
from jupyter_gpushare.coordinator.clients.process_handle import MAX_BYTES, ProcessHandle
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import Page

from ..hostile.page_corruption import ChangingPage
from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import wait_until


@pytest.mark.usefixtures("unaffected_bystander")
def test_device_size_is_bounded(guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess) -> None:
    names = [f"GPU-huge-{number}" for number in range(8)]
    process, other = guest_processes("huge", *names, connect=False), guest_processes("other")
    reports = [{"uuid": uuid, "memory": (1 << 62) - 1} for uuid in names]
    assert process.send_hello(devices=reports) == "welcome"
    shown = {device["uuid"]: device["memory_total"] for device in shared_coordinator.status()["devices"]}
    assert {shown[uuid] for uuid in names} == {MAX_BYTES}
    heartbeat = other.control.heartbeat_ns
    wait_until(lambda: other.control.heartbeat_ns > heartbeat)
    assert 0 < other.control.memory_backing <= MAX_BYTES


@pytest.mark.usefixtures("unaffected_bystander")
def test_fraction_of_a_device_without_memory_is_no_quota(
    guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess
) -> None:
    process = guest_processes("part", "GPU-empty", connect=False, quota="memory=0.5")
    assert process.send_hello(devices=[{"uuid": "GPU-empty"}]) == "welcome"
    client = shared_coordinator.client("part")
    assert client and client["quota"]["memory"] is None


def test_device_names_have_no_control_characters(
    guest_processes: ProcessFactory, shared_coordinator: CoordinatorProcess
) -> None:
    process = guest_processes("named", "GPU-named", connect=False)
    process.send_hello(devices=[{"uuid": "GPU-named", "name": "\x1b]0;owned\x07GPU\n", "memory": 1}])
    shown = {device["uuid"]: device["name"] for device in shared_coordinator.status()["devices"]}
    assert shown["GPU-named"] == " ]0;owned GPU "


HELLO = messages.Hello(client="c", devices=[messages.DeviceReport(uuid="GPU-1"), messages.DeviceReport(uuid="GPU-2")])


def test_resident_targets_use_one_sample_of_the_pages() -> None:
    """The page of a hostile process changes between the computation of the sum and that of its target."""
    random = Random(1)
    runtime = ClientRuntime("c", "t")
    for number in range(3):
        page = Page(create_memfd("gpushare_page"))
        page.report = ChangingPage(page.report, random)
        connection: Any = SimpleNamespace(send=lambda line: None)
        runtime.processes[number] = ProcessHandle(number, connection, page, HELLO)
    for _ in range(1000):
        runtime.set_resident_target("GPU-1", MAX_BYTES)
    for handle in runtime.processes.values():
        handle.page.close()
