"""Tests of the cluster daemon with real node agents: choices, bookings of users, restarts and settings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jupyter_gpushare import __version__
from jupyter_gpushare.cluster.channel.messages import NO_COORDINATOR, NodeError
from jupyter_gpushare.cluster.daemon.messages import ABOVE_CEILING, CEILING_REACHED, ChooseNode, ReleaseBooking
from jupyter_gpushare.cluster.node_connection import CONNECTIONS
from jupyter_gpushare.cluster.settings import GpuShareCluster
from jupyter_gpushare.cluster_daemon import node_watch
from jupyter_gpushare.cluster_daemon.node_watch import NodeWatch
from jupyter_gpushare.cluster_daemon.requests import MAX_BOOKINGS, ClusterRequests
from jupyter_gpushare.coordinator.config.tenant_lookup import TenantLookup
from jupyter_gpushare.core.cluster.cluster_placement import ClusterPlacement
from jupyter_gpushare.core.cluster.node_report import NodeReport, ReportedDevice
from jupyter_gpushare.core.placement import PlacementSettings
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import CoordinatorError

from ..support.polling import wait_until
from .conftest import NODES, WAIT, Daemon, RemoteNotebook


def end_agents(folder: Path) -> None:
    """End the node agents whose environment has this folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def test_a_daemon_learns_from_the_nodes_and_again_after_its_end(
    start_daemon: Callable[..., Daemon], start_notebook: Callable[..., RemoteNotebook]
) -> None:
    daemon = start_daemon(start_timeout="600s")
    assert {daemon.choose("a", quota="share=1"), daemon.choose("b", quota="share=1")} == set(NODES)
    settings = {name: value for name, value in daemon.settings.items() if name != "daemon"}
    start_notebook(node="n1", **settings)
    wait_until(lambda: daemon.nodes()["n1"]["clients"] == 1, WAIT)
    assert daemon.command("--status").stdout.splitlines()[0] == "n1: 1 devices, 1 clients, 1 bookings"

    daemon.kill()
    assert "no cluster daemon answers at" in daemon.command("--status").stderr
    daemon.start()
    wait_until(lambda: daemon.nodes()["n1"]["clients"] == 1, WAIT)
    assert daemon.nodes()["n1"]["bookings"] == 0
    assert daemon.choose("c", nodes=("n1",), quota="share=1") == "n1", "the notebook has asked for no share"
    with pytest.raises(CoordinatorError, match="of its share left") as refusal:
        daemon.choose("d", nodes=("n1",), quota="share=1")
    assert refusal.value.reason == "no_room"


def test_a_lost_node_gets_no_start_until_it_is_back(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    daemon = start_daemon()
    (tmp_path / "n1.lost").touch()
    end_agents(tmp_path / "n1")
    wait_until(lambda: daemon.nodes()["n1"]["message"], WAIT)
    assert {daemon.choose(f"c{n}") for n in range(3)} == {"n2"}
    (tmp_path / "n1.lost").unlink()
    wait_until(lambda: not daemon.nodes()["n1"]["message"], WAIT)
    assert daemon.choose("c3") == "n1"


def test_the_doctor_examines_the_daemon(start_daemon: Callable[..., Daemon], tmp_path: Path) -> None:
    def findings() -> list[tuple[str, str]]:
        found = json.loads(daemon.command("--json", "--simulate", name="doctor").stdout)
        return [(one["level"], one["message"]) for one in found if one["subject"] == "cluster daemon"]

    daemon = start_daemon()
    healthy = ("ok", f"version {__version__} at {daemon.socket}, for the nodes n1, n2")
    assert findings() == [healthy]
    (tmp_path / "n1.lost").touch()
    end_agents(tmp_path / "n1")
    wait_until(lambda: daemon.nodes()["n1"]["message"], WAIT)
    assert findings() == [healthy, ("warning", "n1 gets no clients: the node does not answer")]
    daemon.kill()
    ((level, message),) = findings()
    assert level == "warning"
    problem = f"no cluster daemon answers at {daemon.socket}, so each server chooses nodes by itself"
    assert message == f"{problem}: Connection refused"


async def test_a_request_that_fails_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [OSError("too many open files"), NodeError("no socket", NO_COORDINATOR)]

    def fail(node: str, command: object) -> None:
        raise failures.pop(0) if len(failures) > 1 else failures[0]

    monkeypatch.setattr(CONNECTIONS, "connection", fail)
    monkeypatch.setattr(node_watch, "_MIN_PAUSE_SECONDS", 0.01)
    placement = ClusterPlacement()
    watch = NodeWatch(placement, GpuShareCluster(nodes=["n1"]), lambda user: "")
    watch.start()
    deadline = time.monotonic() + WAIT
    while placement.nodes["n1"].failure and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert not placement.nodes["n1"].failure
    assert len(failures) == 1
    await watch.close()


def test_a_second_daemon_of_the_socket_ends(start_daemon: Callable[..., Daemon]) -> None:
    done = start_daemon().command()
    assert done.returncode == 2 and "another cluster daemon runs at" in done.stderr


class StandInConnection:
    """Connection of a user that keeps the answers."""

    def __init__(self, user: str, has_hung_up: bool = False) -> None:
        self.user = user
        self.has_hung_up = has_hung_up
        self.answers: list[dict[str, Any]] = []

    def send(self, line: bytes) -> None:
        self.answers.append(msgspec.json.decode(line))

    def drop(self) -> None:
        self.answers.append({"type": "dropped"})


class Handler:
    """Handler of requests with one node, and connections of users to it."""

    def __init__(self, **tenants: Any) -> None:
        lookup = TenantLookup(tenants)
        self.placement = ClusterPlacement(PlacementSettings(tenants=tuple(lookup.tenants)))
        device = ReportedDevice("d0", "A100", 80 << 30)
        self.placement.observe("n1", NodeReport((device,)), asked_at=0.0)
        self.requests = ClusterRequests(self.placement, lookup)

    def send(self, user: str, line: bytes) -> dict[str, Any]:
        connection = StandInConnection(user)
        self.requests.on_line(connection, line)  # type: ignore[arg-type]
        return connection.answers[0]

    def choose(self, user: str, client: str, **options: Any) -> dict[str, Any]:
        return self.send(user, msgspec.json.encode(ChooseNode(client=client, **options)))


def test_only_its_user_replaces_a_booking() -> None:
    handler = Handler()
    assert handler.choose("1000", "a")["result"] == {"node": "n1", "devices": ["d0"]}
    assert handler.choose("1001", "a")["reason"] == "forbidden"
    assert handler.choose("1000", "a", quota="share=0.5")["result"]["node"] == "n1"


def test_only_its_user_ends_a_booking() -> None:
    handler = Handler()
    release = msgspec.json.encode(ReleaseBooking(client="a"))
    assert handler.send("1000", release)["result"] is False
    handler.choose("1000", "a", quota="share=1")
    assert handler.send("1001", release)["reason"] == "forbidden"
    assert handler.send("1000", release)["result"] is True
    assert handler.choose("1001", "b", quota="share=1")["result"]


def test_a_server_that_has_hung_up_gets_no_booking() -> None:
    handler = Handler()
    connection: Any = StandInConnection("1000", has_hung_up=True)
    handler.requests.on_line(connection, msgspec.json.encode(ChooseNode(client="a")))
    assert not handler.placement.bookings


def test_a_user_has_a_limited_number_of_bookings() -> None:
    handler = Handler()
    assert MAX_BOOKINGS <= 16
    for number in range(MAX_BOOKINGS):
        handler.choose("1000", f"c{number}")
    assert f"allowed are {MAX_BOOKINGS}" in handler.choose("1000", "one-more")["message"]
    assert handler.choose("1000", "c0")["result"], "the booking replaces another one"
    assert handler.choose("1001", "another")["result"]


def test_a_users_tenant_has_its_ceilings_over_all_nodes() -> None:
    handler = Handler(team={"users": ["1000"], "max_clients": 1, "memory": "1GiB"})
    assert handler.choose("1000", "a")["result"]
    assert handler.choose("1000", "b")["reason"] == CEILING_REACHED
    refusal = handler.choose("1000", "a", quota="memory=2GiB")
    assert refusal["reason"] == ABOVE_CEILING and "above that of tenant" in refusal["message"]
    assert handler.choose("1001", "c", quota="memory=2GiB")["result"]


@pytest.mark.parametrize("line", [b"nonsense", b'{"type":"stop"}', b'{"type":"choose_node","client":"a b"}', b"[]"])
def test_a_malformed_line_gets_an_error(line: bytes) -> None:
    assert Handler().send("1000", line)["reason"] == "malformed"


def test_a_long_line_ends_the_connection() -> None:
    assert Handler().send("1000", b" " * (messages.MAX_LINE + 1))["reason"] == "too_long"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "c.GpuShareCluster.daemon in jupyter_server_config names no socket"),
        ({"daemon": "relative"}, "GpuShareCluster.daemon: the socket address 'relative' is not an absolute path"),
        ({"daemon": "/dev/null", "tenants": {"t": {"share": "lots"}}}, "tenant 't': share"),
        ({"daemon": "/dev/null", "placement": "fast"}, "placement"),
        ({"daemon": "/dev/null"}, "/dev/null exists and is not a socket"),
    ],
)
def test_settings_without_a_meaning_are_named(settings: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "jupyter_server_config.json").write_text(json.dumps({"GpuShareCluster": settings}))
    env = {**os.environ, "JUPYTER_CONFIG_DIR": str(tmp_path)}
    words = [sys.executable, "-m", "jupyter_gpushare", "cluster"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 2 and complaint in done.stderr, done.stderr
