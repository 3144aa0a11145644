"""Tests of the choice of a node, in the rule and with kernels on two nodes of one machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jupyter_client.manager import AsyncKernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster.channel.messages import NO_COORDINATOR, NodeError
from jupyter_gpushare.cluster.node_choice import IDLE, SnapshotRequests, order_nodes
from jupyter_gpushare.cluster.node_connection import CONNECTIONS
from jupyter_gpushare.cluster.settings import GpuShareCluster

from .conftest import WAIT, RemoteNotebook

GIB = 1 << 30


def snapshot(devices: int = 1, phases: tuple[str, ...] = (), allocated: int = 0, failed: int = 0) -> dict[str, Any]:
    return {
        "devices": [
            {"memory_total": 8 * GIB, "failed": "it fell off the bus" if number < failed else None}
            for number in range(devices)
        ],
        "clients": [{"phase": phase, "allocated": allocated} for phase in phases],
    }


@pytest.mark.parametrize(
    ("snapshots", "gpus", "order"),
    [
        ({"a": IDLE, "b": IDLE}, 1, "ab"),
        ({"a": snapshot(1, ("idle",)), "b": IDLE}, 1, "ba"),
        ({"a": None, "b": snapshot(1, ("running", "waiting"))}, 1, "ba"),
        ({"a": snapshot(1, ("running",)), "b": snapshot(1, ("idle", "idle"))}, 1, "ba"),
        ({"a": snapshot(1, ("running",)), "b": snapshot(4, ("running", "waiting"))}, 1, "ba"),
        ({"a": snapshot(1, ("idle", "idle")), "b": snapshot(1, ("idle",))}, 1, "ba"),
        ({"a": snapshot(1, ("idle",), 6 * GIB), "b": snapshot(1, ("idle",), GIB)}, 1, "ba"),
        ({"a": snapshot(1), "b": snapshot(2, ("running",))}, 2, "ba"),
        ({"a": snapshot(2, failed=2), "b": snapshot(1, ("running",) * 3)}, 1, "ba"),
        ({"a": None, "b": snapshot(1, failed=1), "c": IDLE}, 1, "cba"),
        ({"a": snapshot(0), "b": snapshot(1, ("running",) * 3)}, 1, "ba"),
    ],
)
def test_the_node_with_the_most_room_comes_first(snapshots: dict[str, Any], gpus: int, order: str) -> None:
    assert "".join(order_nodes(snapshots, gpus)) == order


@pytest.fixture
def engine(tmp_path: Path) -> str:
    """Return an engine whose nodes have kernels and coordinators of their own.

    The node `n2` has two devices, the coordinator of `bare` does not start, and the node `off` does not answer.
    """
    folder = f"{tmp_path}/{{node}}"
    variables = f"XDG_STATE_HOME={folder} GPUSHARE_SIM_STATE={folder}/devices"
    variables += f' GPUSHARE_SOCKET=$(test "{{node}}" = bare && echo /dev/null || echo {folder})/c.sock'
    variables += ' GPUSHARE_SIM_DEVICES=$(test "{node}" != n2; echo $((1 + $?)))'
    off = 'test "{node}" != off || { echo no route to the host >&2; exit 1; }'
    return f"sh -c '{off}; mkdir -pm 700 {folder}; exec env {variables} \"$@\"' sh {{agent}}"


def node_of(notebook: RemoteNotebook) -> str:
    return Path(str(notebook.value("__import__('os').environ['XDG_STATE_HOME']"))).name


def test_kernels_go_to_the_nodes_with_the_fewest_clients(
    start_notebook: Callable[..., RemoteNotebook], engine: str
) -> None:
    addresses = dict.fromkeys(("off", "n1", "n2"), "127.0.0.1")
    settings = {"engine": engine, "nodes": ["off", "n1", "n2"], "addresses": addresses}
    notebooks = [start_notebook(**settings) for _ in range(2)]
    assert {node_of(notebook) for notebook in notebooks} == {"n1", "n2"}
    first = node_of(notebooks[0])
    notebooks[0].manager.restart_kernel()
    notebooks[0].client.wait_for_ready(WAIT)
    assert node_of(notebooks[0]) == first


def test_kernels_that_start_at_the_same_time_go_to_different_nodes(
    start_notebook: Callable[..., RemoteNotebook], engine: str
) -> None:
    settings = {"engine": engine, "nodes": ["n1", "n2"], "addresses": dict.fromkeys(("n1", "n2"), "127.0.0.1")}
    config = Config({"GpuShareCluster": settings})
    managers = [AsyncKernelManager(kernel_name="remote", config=config) for _ in range(2)]

    async def start_all() -> None:
        await asyncio.gather(*(manager.start_kernel() for manager in managers))
        assert {manager.provisioner.node_name for manager in managers} == {"n1", "n2"}  # type: ignore[union-attr]
        await asyncio.gather(*(manager.shutdown_kernel(now=True) for manager in managers))

    asyncio.run(start_all())


def test_the_host_of_the_server_is_a_node_without_an_engine(start_notebook: Callable[..., RemoteNotebook]) -> None:
    notebook = start_notebook(
        engine="false {node} {agent}", nodes=["gpu7", "localhost"], addresses={"gpu7": "127.0.0.1"}
    )
    assert notebook.value("__import__('os').environ['GPUSHARE_NODE']") == "localhost"


def test_a_node_that_refuses_the_client_is_passed_over(
    start_notebook: Callable[..., RemoteNotebook], engine: str
) -> None:
    """The node with more clients has a second device, for which the quota of the kernel asks."""
    settings = {"engine": engine, "addresses": dict.fromkeys(("n1", "n2"), "127.0.0.1")}
    start_notebook(nodes=["n2"], **settings)
    notebook = start_notebook(nodes=["n1", "n2"], device="1", **settings)
    assert node_of(notebook) == "n2"


def test_a_node_whose_coordinator_does_not_start_is_passed_over(
    start_notebook: Callable[..., RemoteNotebook], engine: str
) -> None:
    addresses = dict.fromkeys(("bare", "n1"), "127.0.0.1")
    assert node_of(start_notebook(engine=engine, nodes=["bare", "n1"], addresses=addresses)) == "n1"


def test_a_kernel_that_all_nodes_refuse_starts_without_sharing(
    start_notebook: Callable[..., RemoteNotebook], engine: str
) -> None:
    """The node with the room for another try does not come last, because the last node does not answer."""
    notebook = start_notebook(
        engine=engine, nodes=["n1", "off"], device="7", addresses=dict.fromkeys(("n1", "off"), "127.0.0.1")
    )
    assert node_of(notebook) == "n1"


def test_the_sentence_has_the_failure_of_each_node(start_notebook: Callable[..., RemoteNotebook], engine: str) -> None:
    with pytest.raises(NodeError) as failure:
        start_notebook(engine=engine, nodes=["off", "n1"], addresses={"off": "127.0.0.1", "n1": "192.0.2.1"})
    assert str(failure.value) == (
        "no node has started the kernel: n1: the node does not have the address 192.0.2.1; "
        "off: the node agent on off has ended: no route to the host"
    )


@pytest.mark.parametrize(("reason", "snapshot"), [(NO_COORDINATOR, IDLE), ("unreachable", None), ("internal", None)])
async def test_only_a_node_without_a_coordinator_counts_as_idle(
    monkeypatch: pytest.MonkeyPatch, reason: str, snapshot: object
) -> None:
    def refuse(node: str, command: object) -> None:
        raise NodeError("the request has failed", reason)

    monkeypatch.setattr(CONNECTIONS, "connection", refuse)
    assert await SnapshotRequests().all(["n1"], GpuShareCluster(nodes=["n1"])) == {"n1": snapshot}


async def test_a_node_that_has_not_answered_gets_no_request_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine starts anew for each request to a node without a connection."""
    now, requested = [0.0], []

    def refuse(node: str, command: object) -> None:
        requested.append(now[0])
        raise NodeError("no route to the host", "engine_failed")

    monkeypatch.setattr("jupyter_gpushare.cluster.node_choice.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(CONNECTIONS, "connection", refuse)
    requests = SnapshotRequests()
    for moment in (1.0, 2.0, 10.9, 11.1, 12.0):
        now[0] = moment
        assert await requests.all(["n1"], GpuShareCluster(nodes=["n1"])) == {"n1": None}
    assert requested == [1.0, 11.1]
