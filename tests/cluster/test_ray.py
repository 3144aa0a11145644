"""Tests of kernels on two real nodes of Ray. The tests are skipped where Ray is not installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.channel.messages import Coordinator, NodeError, Running
from jupyter_gpushare.cluster.node_connection import CONNECTIONS

from ..support.polling import wait_until
from ..support.tier import strength
from .conftest import WAIT, JupyterServer, RemoteNotebook, end_nodes_below
from .ray_cluster import IS_INSTALLED, NODES, RayCluster
from .test_server_restarts import value

Start = Callable[..., RemoteNotebook]
HEAD, OTHER = NODES
KILLS = strength(1, 5)  # of one test
TESTS_OF_KILLS = strength(1, 10)
# After the kill, or after the return of the raylet. Jupyter's packages in the environment slow the import of Ray.
INTERRUPT_SECONDS = strength(WAIT, 10.0)
AFTER_THE_HEAD_SECONDS = 120.0
pytestmark = [
    pytest.mark.skipif(not IS_INSTALLED, reason="needs Ray: pip install -e '.[ray]'"),
    pytest.mark.xdist_group("ray"),
]


@pytest.fixture(scope="module")
def cluster(own_host: Path) -> Iterator[RayCluster]:
    cluster = RayCluster(own_host)  # which ends the coordinators of the nodes as well
    yield cluster
    cluster.close()


@pytest.fixture
def start(start_notebook: Start, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Start:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)

    def start_on(node: str) -> RemoteNotebook:
        return start_notebook(
            node, engine="ray", nodes=list(NODES), addresses=dict.fromkeys([*NODES, node], "127.0.0.1")
        )

    return start_on


def request(notebook: RemoteNotebook, message: Coordinator | Running) -> object:
    connection = notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
    return connection.request(message).result(WAIT)


def has_kernels(notebook: RemoteNotebook) -> bool:
    """Return whether a node agent finds kernels on the notebook's node."""
    with contextlib.suppress(NodeError):  # of the agent before
        return bool(request(notebook, Running()))
    return False


def kill_bridges() -> None:
    for connection in CONNECTIONS.present():
        os.killpg(connection.process.pid, signal.SIGKILL)
        wait_until(lambda connection=connection: connection.failure)


def test_a_kernel_on_each_node_uses_the_gpu_of_its_node(start: Start, cluster: RayCluster) -> None:
    notebooks = {node: start(node) for node in NODES}
    for node, notebook in notebooks.items():
        notebook.use_gpu()
        assert notebook.value("__import__('os').environ['XDG_STATE_HOME']") == f"{cluster.folder}/{node}/state"
        status = request(notebook, Coordinator(message={"type": "status"}))
        assert [client["id"] for client in status["clients"]] == [notebook.manager.kernel_id]  # type: ignore[index]
    for notebook in notebooks.values():
        notebook.manager.shutdown_kernel()
        assert request(notebook, Running()) == []
    CONNECTIONS.close()
    for node in NODES:
        wait_until(lambda node=node: not cluster.workers(node))


def test_a_kernel_has_the_environment_and_priorities_of_the_raylet(start: Start, cluster: RayCluster) -> None:
    notebook = start(OTHER)
    raylet = cluster.raylet(OTHER)
    changed = "n.startswith('RAY_') or n in ('OMP_NUM_THREADS', 'PYTHONBREAKPOINT')"
    assert notebook.value(f"[n for n in __import__('os').environ if {changed}]") == []
    assert notebook.value("__import__('os').getpriority(0, 0)") == os.getpriority(os.PRIO_PROCESS, raylet)
    score = Path(f"/proc/{raylet}/oom_score_adj").read_text()
    assert notebook.value("open('/proc/self/oom_score_adj').read()") == score
    notebook.interrupt_an_endless_cell()


@pytest.mark.parametrize("first", [KILLS * number for number in range(TESTS_OF_KILLS)])
@pytest.mark.parametrize("killed", ["bridge", "worker", "raylet"])
def test_variables_outlive_the_parts_of_ray(start: Start, cluster: RayCluster, killed: str, first: int) -> None:
    notebook = start(OTHER)
    for number in range(first, first + KILLS):
        notebook.run(f"x_{number} = {number}")
        if killed == "bridge":
            kill_bridges()
        elif killed == "worker":
            cluster.kill_workers(OTHER)
        else:
            cluster.kill_node(OTHER)
            assert notebook.value(f"x_{number}") == number
            cluster.start_node(OTHER)
        began = time.monotonic()
        wait_until(lambda: has_kernels(notebook))
        notebook.interrupt_an_endless_cell()
        assert time.monotonic() < began + INTERRUPT_SECONDS
    numbers = range(first, first + KILLS)
    assert notebook.value(f"[{', '.join(f'x_{number}' for number in numbers)}]") == list(numbers)


@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_server_and_its_kernels_outlive_the_head(
    start_server: Callable[..., JupyterServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray ends the processes that have connected to a cluster about a minute after the end of its head."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    cluster = RayCluster(folder)
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        server = start_server(engine="ray", nodes=[OTHER], addresses={OTHER: "127.0.0.1"})
        kernels = [server.request("POST", "kernels", {"name": name})["id"] for name in ("remote", "python3")]
        for kernel in kernels:
            assert value(tmp_path / "runtime", kernel, "globals().setdefault('x', 41)") == "41"
        cluster.kill_node(HEAD)
        end = time.monotonic() + AFTER_THE_HEAD_SECONDS
        while time.monotonic() < end:
            assert server.process.poll() is None, server.log.read_text()
            assert {kernel["id"] for kernel in server.request("GET", "kernels")} == set(kernels)
            time.sleep(1.0)
        for kernel in kernels:
            assert value(tmp_path / "runtime", kernel, "x + 1") == "42"
    finally:
        end_nodes_below(folder)
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)


def test_a_node_has_a_name_an_address_and_an_id(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    words = Path(f"/proc/{cluster.raylet(OTHER)}/cmdline").read_text().split("\0")
    node_id = next(word.partition("=")[2] for word in words if word.startswith("--node_id="))
    nodes = {OTHER: [OTHER], node_id: [OTHER], cluster.address.partition(":")[0]: NODES}
    data = b"\0bytes\n" * 9999
    for name, allowed in nodes.items():
        script = "cat; echo $XDG_STATE_HOME >&2; exit 3"
        command = [sys.executable, "-m", "jupyter_gpushare.cluster.ray_bridge", name, "sh", "-c", script]
        done = subprocess.run(command, input=data, capture_output=True, timeout=WAIT, check=False)
        assert (done.returncode, done.stdout) == (3, data)
        assert done.stderr.decode().strip() in [f"{cluster.folder}/{node}/state" for node in allowed]


def test_an_unknown_node_gives_a_list_of_the_nodes(start: Start) -> None:
    with pytest.raises(NodeError, match=r"has ended: the Ray cluster has no node nosuch: its nodes are gpu1, gpu2$"):
        start("nosuch")


def test_a_cluster_out_of_reach_gives_its_address(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(NodeError, match=r"has ended: no Ray cluster can be reached at the address 127\.0\.0\.1:1 .*$"):
        start(HEAD)
