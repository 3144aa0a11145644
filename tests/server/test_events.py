"""Tests of the WebSocket's frames, also after the loss of the coordinator."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from typing import Any

import pytest

from jupyter_gpushare.server.snapshot_times import counted_on
from jupyter_gpushare.server.websocket import EventsHandler
from jupyter_gpushare.wire import messages

CLIENT = "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001"


async def receive_until(receive: Any, condition: Any) -> Any:
    """Return the first frame for which `condition` is true."""
    deadline = time.monotonic() + 60
    while not condition(frame := await receive()):
        assert frame is not None and time.monotonic() < deadline
    return frame


def pid_of(frame: Any) -> Any:
    return frame["type"] == "snapshot" and frame["status"]["coordinator"]["pid"]


def ids_of(frame: Any) -> set[str]:
    """Return the clients of a frame."""
    return {client["id"] for client in frame["status"]["clients"]} if frame["type"] == "snapshot" else set()


def is_unavailable(frame: Any) -> bool:
    return bool(frame["type"] == "unavailable")


async def test_a_snapshot_at_once_and_one_after_a_change(events: Any, coordinator: Any) -> None:
    await coordinator.start(CLIENT)
    receivers = [await events() for _ in range(3)]
    for receive in receivers:
        assert (await receive())["type"] == "snapshot"
    await coordinator.start("another")
    for receive in receivers:
        await receive_until(receive, lambda frame: ids_of(frame) == {CLIENT, "another"})


async def test_passing_time_sends_nothing(events: Any, coordinator: Any, extension: Any) -> None:
    await coordinator.start(CLIENT)
    receive = await events()
    await receive()
    status = extension.supervisor.status
    later = {**status, "coordinator": {**status["coordinator"], "uptime_seconds": 1e6}}
    extension.supervisor._publish(later)
    extension.supervisor._publish({**later, "config": {"marked": True}})
    while (status := (await receive())["status"])["coordinator"]["uptime_seconds"] != 1e6:
        pass  # a snapshot of the coordinator itself
    assert status["config"] == {"marked": True}


async def test_no_coordinator_is_started_for_a_watcher(events: Any, coordinator: Any) -> None:
    receive = await events()
    frame = await receive()
    assert (frame["type"], frame["reason"]) == ("unavailable", "not_running")
    assert coordinator.path in frame["message"]
    assert coordinator.pid == 0
    await coordinator.start(CLIENT)
    assert (await receive())["type"] == "snapshot", "the server must find the coordinator by itself"


async def test_first_frame_is_a_new_snapshot(events: Any, coordinator: Any) -> None:
    """The first frame is new, because front ends continue its times, and the last snapshot may be old."""

    async def uptime() -> float:
        return float((await coordinator.request(messages.Status()))["coordinator"]["uptime_seconds"])

    await coordinator.start(CLIENT)
    first = (await (await events())())["status"]["coordinator"]["uptime_seconds"]
    while (now := await uptime()) < first + 0.3:
        await asyncio.sleep(0.05)
    second = (await (await events())())["status"]["coordinator"]["uptime_seconds"]
    assert second >= now


async def test_the_system_ends_the_connection_of_a_page_that_has_gone(
    events: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    prepare = EventsHandler.prepare
    monkeypatch.setattr(EventsHandler, "prepare", lambda handler: opened.append(handler) or prepare(handler))
    await (await events())()
    (handler,) = opened
    assert handler.ws_connection.stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


async def test_a_change_of_a_node_keeps_the_times_of_the_host(events: Any, coordinator: Any, extension: Any) -> None:
    async def uptime() -> float:
        return float((await coordinator.request(messages.Status()))["coordinator"]["uptime_seconds"])

    await coordinator.start(CLIENT)
    receive = await events()
    first = (await receive())["status"]["coordinator"]["uptime_seconds"]
    while await uptime() < first + 2.0:  # the coordinator sends no snapshot meanwhile
        await asyncio.sleep(0.05)
    viewer = {"user": "me", "admin": False}
    far = {"devices": [], "clients": [{"id": "far"}], "viewer": viewer, "coordinator": {"run": "other"}}
    extension.nodes.by_node["gpu2"] = far
    extension.supervisor.send_changes()
    frame = await receive_until(receive, lambda frame: len(frame["status"]["clients"]) == 2)
    assert frame["status"]["coordinator"]["uptime_seconds"] >= first + 1.0


def test_times_are_counted_on() -> None:
    progress = {"done": 3, "seconds_left": 60.0}
    client = {"expected_wait": 3.0, "idle_seconds": None, "evicted_in": 9.5, "wait_seconds": 4.0, "progress": progress}
    status = {"devices": [{"grants": [{"granted_seconds": 1.5, "seconds_left": None}]}], "clients": [client]}
    assert counted_on(status, 5.0) == {
        "devices": [{"grants": [{"granted_seconds": 6.5, "seconds_left": None}]}],
        "clients": [{**client, "expected_wait": 0.0, "evicted_in": 4.5}],
    }


async def test_reason_of_a_failed_restart_is_shown(
    events: Any, coordinator: Any, monkeypatch: pytest.MonkeyPatch, extension: Any
) -> None:
    await coordinator.start(CLIENT)
    receive = await events()
    await receive()
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["/bin/sh", "-c", "echo disk full >&2; exit 3"]')
    coordinator.kill()
    frame = await receive_until(receive, lambda frame: "disk full" in frame.get("message", ""))
    assert (frame["type"], frame["reason"]) == ("unavailable", "unreachable")
    monkeypatch.delenv("GPUSHARE_COORDINATOR_ARGV")
    await receive_until(receive, pid_of)


async def test_killed_coordinator_is_replaced(events: Any, coordinator: Any, jp_serverapp: Any) -> None:
    await coordinator.start(CLIENT)
    receive = await events()
    assert pid_of(await receive()) == coordinator.pid
    for _ in range(2):
        killed = coordinator.kill()
        await receive_until(receive, is_unavailable)
        back = await receive_until(receive, pid_of)
        assert pid_of(back) not in (killed, 0)
        assert pid_of(back) == coordinator.pid
        await coordinator.start(CLIENT)
        await receive_until(receive, ids_of)


async def test_coordinator_without_clients_is_not_replaced(events: Any, coordinator: Any, wait_until: Any) -> None:
    await coordinator.start()
    receive = await events()
    assert pid_of(await receive()) == coordinator.pid
    killed = coordinator.kill()
    await receive_until(receive, is_unavailable)
    # A process that ends closes its sockets one after the other.
    await wait_until(lambda: coordinator.pid != killed, "the end of the coordinator")
    deadline = time.monotonic() + 1.5
    while time.monotonic() < deadline:
        assert coordinator.pid == 0
        await asyncio.sleep(0.05)


async def test_subscription_ends_with_its_last_use(
    jp_ws_fetch: Any, coordinator: Any, extension: Any, wait_until: Any
) -> None:
    """A coordinator ends by itself only without subscriptions."""
    await coordinator.start()
    socket = await jp_ws_fetch("gpushare", "api", "events")
    assert "snapshot" in await socket.read_message()
    assert extension.supervisor.status is not None
    socket.close()
    await wait_until(lambda: extension.supervisor.status is None, "no subscription")
    again = await jp_ws_fetch("gpushare", "api", "events")
    assert "snapshot" in await again.read_message()
    again.close()


async def test_server_shutdown_leaves_nothing(
    events: Any, api: Any, coordinator: Any, jp_serverapp: Any, wait_until: Any
) -> None:
    def sockets() -> int:
        return sum(os.path.realpath(f"/proc/self/fd/{fd}").rpartition("/")[2][:6] == "socket" for fd in fds())

    def fds() -> list[str]:
        return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]

    before = sockets()
    await coordinator.start(CLIENT)
    receivers = [await events() for _ in range(2)]
    for receive in receivers:
        assert (await receive())["type"] == "snapshot"
    await api("GET", "status")
    assert sockets() > before
    await jp_serverapp.extension_manager.stop_all_extensions()
    for receive in receivers:
        while await receive():
            pass
    await wait_until(lambda: not [task for task in asyncio.all_tasks() if "gpushare" in task.get_name()], "no tasks")
    await wait_until(lambda: sockets() <= before, "no sockets")
    assert coordinator.pid, "other clients may need the coordinator"
