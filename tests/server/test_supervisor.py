"""Tests of the supervisor: starts, failed starts, stopped coordinators, and coordinators with other settings."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from traitlets.config import Config

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.server import liveness
from jupyter_gpushare.server.node_snapshots import NodeSnapshots
from jupyter_gpushare.server.settings_drift import SettingsDrift
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import AsyncClient, default_coordinator_argv


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Return a function that sets the start command of coordinators and returns a counter of the starts."""
    log = tmp_path / "starts"
    log.touch()

    def set_command(command: str, *words: str) -> Any:
        argv = ["/bin/sh", "-c", f'echo started >> "{log}"; {command}', "sh", *words]
        monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", json.dumps(argv))
        return lambda: len(log.read_text().splitlines())

    return set_command


async def test_one_coordinator_for_many_requests(api: Any, starts: Any, coordinator: Any) -> None:
    count = starts('exec "$@"', *default_coordinator_argv(simulate=True))
    found = await asyncio.gather(*(api("GET", "status") for _ in range(5)))
    assert {status["coordinator"]["pid"] for status in found} == {coordinator.pid}
    assert count() == 1


async def test_failing_start_is_reported_and_not_repeated_at_once(refused: Any, starts: Any, extension: Any) -> None:
    count = starts("echo disk full >&2; exit 3")
    first = await refused("GET", "status")
    assert (first.status, first.reason) == (503, "unreachable")
    assert "disk full" in first.message and "3" in first.message
    extension.supervisor._retry_at += 60  # a busy machine may take longer than the first delay
    for _ in range(3):
        assert await refused("GET", "status") == first
    assert count() == 1


async def test_failing_start_is_tried_again_later(
    refused: Any, starts: Any, coordinator: Any, api: Any, extension: Any
) -> None:
    working = default_coordinator_argv(simulate=True)
    starts("exit 1")
    assert (await refused("GET", "status")).status == 503
    starts('exec "$@"', *working)
    extension.supervisor._retry_at = asyncio.get_running_loop().time()
    assert (await api("GET", "status"))["coordinator"]["pid"] == coordinator.pid


async def test_coordinator_of_another_process_ends_a_failure(
    refused: Any, starts: Any, coordinator: Any, api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts("exit 1")
    assert (await refused("GET", "status")).status == 503
    monkeypatch.delenv("GPUSHARE_COORDINATOR_ARGV")
    await coordinator.start()
    assert (await api("GET", "status"))["coordinator"]["pid"] == coordinator.pid


@pytest.fixture
def send_signal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that stops or continues a coordinator.

    The server waits for a stopped coordinator for a short time only. A busy machine delays a coordinator that runs.
    """

    def set_timeout(seconds: float) -> None:
        monkeypatch.setattr(liveness, "ANSWER_TIMEOUT_SECONDS", seconds)

    def send(pid: int, number: int) -> None:
        set_timeout(5.0)
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            set_timeout(0.2)

    monkeypatch.setattr(liveness, "CHECK_INTERVAL_SECONDS", 0.1)
    set_timeout(5.0)
    return send


async def test_stopped_coordinator_is_unavailable_until_it_continues(
    events: Any, coordinator: Any, starts: Any, send_signal: Callable[[int, int], None]
) -> None:
    await coordinator.start("client")
    count = starts('exec "$@"', *default_coordinator_argv(simulate=True))
    pid = coordinator.pid
    receive = await events()
    assert (await receive())["type"] == "snapshot"
    for _ in range(2):
        send_signal(pid, signal.SIGSTOP)
        frame = await receive()
        assert (frame["type"], frame["reason"]) == ("unavailable", "unreachable")
        assert coordinator.path in frame["message"] and "does not answer" in frame["message"]
        assert await (await events())() == frame, "a new front end must get the same frame"
        send_signal(pid, signal.SIGCONT)
        back = await receive()
        assert back["type"] == "snapshot", "no other frame may come between"
        assert back["status"]["coordinator"]["pid"] == pid
    await coordinator.request(messages.SetQuota(client="client", changes={"share": 0.5}))
    assert [client["quota"]["share"] for client in (await receive())["status"]["clients"]] == [0.5]
    assert count() == 0


async def test_a_stopped_coordinator_hides_no_node(
    events: Any, coordinator: Any, extension: Any, starts: Any, send_signal: Callable[[int, int], None]
) -> None:
    await coordinator.start("client")
    starts('exec "$@"', *default_coordinator_argv(simulate=True))
    viewer = {"user": "me", "admin": False}
    far = {"devices": [], "clients": [{"id": "far"}], "viewer": viewer, "coordinator": {"run": "other"}}
    extension.nodes.by_node["gpu2"] = far
    receive = await events()
    await receive()
    send_signal(coordinator.pid, signal.SIGSTOP)
    try:
        frame = await receive()
    finally:
        send_signal(coordinator.pid, signal.SIGCONT)
    assert frame["type"] == "snapshot" and frame["status"]["config"] is None
    assert frame["status"]["clients"] == [{"id": "far", "node": "gpu2"}]
    (host,) = frame["status"]["nodes"]
    assert host["name"] == "" and "does not answer" in host["message"]


async def test_a_node_without_an_answer_so_far_is_marked() -> None:
    class KernelsOnNode:
        def nodes(self) -> set[str]:
            return {"gpu2"}

    found: Any = KernelsOnNode()
    nodes = NodeSnapshots(found, list, lambda: False, lambda: None, logging.getLogger(__name__))
    nodes.follow()
    shown = nodes.merged({"devices": [], "clients": [], "coordinator": {}})
    await nodes.close()
    assert shown and shown["nodes"] == [{"name": "gpu2", "message": "The node gpu2 has not answered yet."}]


async def test_coordinator_that_is_stopped_when_it_is_found(
    events: Any, coordinator: Any, send_signal: Callable[[int, int], None]
) -> None:
    await coordinator.start("client")
    pid = coordinator.pid
    send_signal(pid, signal.SIGSTOP)
    receive = await events()
    assert "does not answer" in (await receive())["message"]
    send_signal(pid, signal.SIGCONT)
    assert (await receive())["status"]["coordinator"]["pid"] == pid


async def test_stopped_coordinator_that_exits_is_replaced(
    events: Any, coordinator: Any, send_signal: Callable[[int, int], None]
) -> None:
    await coordinator.start("client")
    pid = coordinator.pid
    receive = await events()
    assert (await receive())["type"] == "snapshot"
    send_signal(pid, signal.SIGSTOP)
    assert "does not answer" in (await receive())["message"]
    send_signal(pid, signal.SIGKILL)
    while (frame := await receive())["type"] == "unavailable":
        pass
    assert frame["status"]["coordinator"]["pid"] not in (0, pid)


async def test_a_coordinator_of_an_older_version_is_shown_and_replaced(
    events: Any, coordinator: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The older version lacks a field that a listener of this server needs."""
    subscribe = AsyncClient.subscribe

    async def subscribe_to_older(client: AsyncClient, *options: Any) -> AsyncIterator[dict[str, Any]]:
        async for status in subscribe(client, *options):
            for one in status["clients"]:
                del one["interrupt_requested"]
            yield status

    monkeypatch.setattr(AsyncClient, "subscribe", subscribe_to_older)
    await coordinator.start("client")
    receive = await events()
    for share in (0.25, 0.5):
        await coordinator.request(messages.SetQuota(client="client", changes={"share": share}))
        while (frame := await receive())["status"]["clients"][0]["quota"]["share"] != share:
            pass
    assert [record.getMessage() for record in caplog.records].count("failed to use a snapshot of GPU sharing") == 1
    pid = coordinator.kill()
    while (frame := await receive())["type"] == "unavailable":
        pass
    assert frame["status"]["coordinator"]["pid"] not in (0, pid)


@pytest.mark.parametrize("gpushare_settings", [{"simulate": True, "coordinator": "/dev/null/c.sock"}])
async def test_configured_address_is_used(refused: Any, coordinator: Any) -> None:
    refusal = await refused("GET", "status")
    assert (refusal.status, refusal.reason) == (503, "unreachable")
    assert "/dev/null/c.sock" in refusal.message
    assert coordinator.pid == 0


async def test_server_start_waits_for_nothing(extension: Any, starts: Any, jp_serverapp: Any) -> None:
    count = starts("sleep 60", sys.executable)
    began = time.monotonic()
    await jp_serverapp.extension_manager.start_all_extensions()
    assert time.monotonic() - began < 30  # the start command takes a minute
    assert count() == 0


@pytest.mark.parametrize("gpushare_settings", [{"simulate": True, "time_quantum": 7.0}])
async def test_running_coordinator_with_other_settings_is_logged_once(
    api: Any, coordinator: Any, extension: Any, wait_until: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def warnings() -> list[str]:
        return [record.getMessage() for record in caplog.records if "c.GpuShare" in record.getMessage()]

    for _ in range(2):
        await coordinator.start("client")
        await api("GET", "status")
        await wait_until(lambda: extension.supervisor.status, "a snapshot")
        old = coordinator.pid
        os.kill(old, signal.SIGTERM)
        await wait_until(lambda: extension.supervisor.status is None, "the loss of the coordinator")
    await wait_until(lambda: coordinator.pid not in (0, old), "another coordinator")
    assert len(warnings()) == 1
    assert "time_quantum is 7.0 in this server, but 'auto' in the running" in warnings()[0]


@pytest.mark.parametrize(
    ("configured", "running", "warned"),
    [
        ({}, {"time_quantum": 5.0}, []),
        ({"time_quantum": 5.0}, {"time_quantum": 5.0}, []),
        ({"time_quantum": 30.0}, {"time_quantum": 5.0}, ["time_quantum"]),
        ({"device_memory": "4GiB"}, {"device_memory": 4 << 30}, []),
        ({"device_memory": "4GiB"}, {"device_memory": ""}, ["device_memory"]),
        ({"default_quota": {"memory": "8GiB"}}, {"default_quota": {"memory": 8 << 30, "share": 0.0}}, []),
        ({"default_quota": {"memory": "8GiB"}}, {"default_quota": {}}, ["default_quota"]),
        ({"simulate": True, "policy": "fcfs"}, {"simulate": False, "policy": "fcfs"}, ["simulate"]),
    ],
)
def test_settings_drift_lists_the_differences(
    configured: Any, running: Any, warned: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("differences")
    differences = SettingsDrift(GpuShare(config=Config(GpuShare=configured)), log)
    with caplog.at_level(logging.WARNING, "differences"):
        differences.on_snapshot(None, {"config": running})
        differences.on_snapshot(None, {"config": running})
    named = [record.getMessage().split("c.GpuShare.")[1].split()[0] for record in caplog.records]
    assert named == warned
