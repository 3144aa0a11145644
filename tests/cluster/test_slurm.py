"""Tests of kernels on two real Slurm nodes. The tests are skipped where Slurm is not installed."""

from __future__ import annotations

import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.channel.messages import Coordinator, NodeError, Running
from jupyter_gpushare.cluster.node_connection import CONNECTIONS
from jupyter_gpushare.demo.slurm_cluster import NODES, SlurmCluster, missing_programs

from ..support import tier
from ..support.polling import wait_until
from .conftest import WAIT, RemoteNotebook, end_nodes_below
from .packets import recorded_packets

Start = Callable[..., RemoteNotebook]
KILLS = tier.strength(1, 5)  # of one test
TESTS_OF_KILLS = tier.strength(1, 10)
INTERRUPT_SECONDS = tier.strength(WAIT, 5.0)
pytestmark = [
    pytest.mark.skipif(bool(missing_programs()), reason=f"needs {', '.join(missing_programs())}"),
    pytest.mark.xdist_group("slurm"),
]


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    folder = Path(tempfile.mkdtemp(prefix="gs-"))
    folder.chmod(0o755)
    cluster = SlurmCluster(folder)
    yield cluster
    cluster.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(start_notebook: Start, slurm: SlurmCluster) -> Start:
    def start_on(node: str, **settings: object) -> RemoteNotebook:
        addresses = {name: f"127.0.0.{number}" for number, name in enumerate([*NODES, node], 1)}
        return start_notebook(node, engine=slurm.engine, nodes=list(NODES), addresses=addresses, **settings)

    return start_on


def clients_of(notebook: RemoteNotebook) -> list[str]:
    """Return the clients of the coordinator on the notebook's node."""
    connection = notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
    return [one["id"] for one in connection.request(Coordinator(message={"type": "status"})).result(WAIT)["clients"]]


def is_reached(notebook: RemoteNotebook) -> bool:
    """Return whether Slurm starts an agent, and the agent's node has the client of the notebook.

    slurmctld forgets its last jobs when it is killed, and slurmd refuses the next jobs with their ids.
    """
    with suppress(NodeError):
        return clients_of(notebook) == [notebook.manager.kernel_id]
    return False


def test_a_kernel_on_each_node_uses_the_gpu_of_its_node(start: Start, slurm: SlurmCluster) -> None:
    notebooks = {node: start(node) for node in NODES}
    for node, notebook in notebooks.items():
        notebook.use_gpu()
        state = notebook.value("__import__('os').environ['XDG_STATE_HOME']")
        assert state == f"{slurm.folder}/{node}/state"
        assert clients_of(notebook) == [notebook.manager.kernel_id]
    for notebook in notebooks.values():
        notebook.manager.shutdown_kernel()
        connection = notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
        assert connection.request(Running()).result(WAIT) == []


@pytest.mark.parametrize("first", [KILLS * number for number in range(TESTS_OF_KILLS)])
def test_variables_outlive_the_daemons_of_slurm(start: Start, slurm: SlurmCluster, first: int) -> None:
    notebook = start(NODES[0])
    numbers = range(first, first + KILLS)
    for number in numbers:
        notebook.run(f"x_{number} = {number}")
        slurm.kill_daemons()
        for _ in range(2):  # without the daemons, and with the next ones
            began = time.monotonic()
            notebook.interrupt_an_endless_cell()
            assert time.monotonic() < began + INTERRUPT_SECONDS
            slurm.start_daemons()
    assert notebook.value(f"[{', '.join(f'x_{number}' for number in numbers)}]") == list(numbers)


def test_a_kernel_without_daemons_and_agents_has_the_next_ones(start: Start, slurm: SlurmCluster) -> None:
    notebook = start(NODES[0])
    notebook.run("x = 41")
    slurm.kill_daemons()
    for connection in CONNECTIONS.present():
        connection.close()
    assert notebook.value("x + 1") == 42
    slurm.start_daemons()
    wait_until(lambda: is_reached(notebook))
    notebook.interrupt_an_endless_cell()
    assert notebook.value("x + 1") == 42


def test_a_recording_of_slurm_has_neither_cells_nor_keys(start: Start) -> None:
    with recorded_packets() as recording:
        notebook = start(NODES[0])
        notebook.run("'a text that only the two ends may read' * 100")
        info = notebook.manager.get_connection_info()
        token = notebook.value("__import__('os').environ['GPUSHARE_TOKEN']")
        notebook.manager.shutdown_kernel(now=True)
        recorded = recording()
    assert b"gpushare-node" in recorded, "srun sends the streams of the node agent in plain text"
    for secret in (b"only the two ends may read", info["key"], info["curve_secretkey"].encode(), token.encode()):
        assert secret not in recorded


def test_the_preset_starts_a_kernel_without_secrets_of_a_server_inside_a_job(
    start_notebook: Start, slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Python of the prefix gives the node folders of its own, because the preset sends no variables with them."""
    folders = {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run", "GPUSHARE_LOCK_DIR": "locks"}
    folders["GPUSHARE_SIM_STATE"] = "devices"
    words = " ".join(f"{name}={slurm.folder}/preset/{part}" for name, part in folders.items())
    (slurm.folder / "preset" / "run").mkdir(mode=0o700, parents=True)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec env {words} {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("SLURM_CONF", str(slurm.configuration))
    monkeypatch.setenv("SLURM_JOB_ID", "99999")  # no job of this cluster
    secret = secrets.token_hex()
    monkeypatch.setenv("JUPYTERHUB_API_TOKEN", secret)
    with recorded_packets() as recording:
        settings = {"nodes": list(NODES), "addresses": dict.fromkeys(NODES, "127.0.0.1"), "prefix": str(tmp_path)}
        notebook = start_notebook(NODES[0], engine="slurm", variables=["GPUSHARE_SIMULATE"], **settings)
        notebook.use_gpu()
        found = notebook.value("dict(__import__('os').environ)")
        job = "srun --oversubscribe printenv SLURM_JOB_ID"
        own_job = notebook.value(f"__import__('subprocess').getoutput({job!r})")
        notebook.manager.shutdown_kernel(now=True)
        recorded = recording()
    end_nodes_below(slurm.folder)
    assert [name for name in found if name.startswith("SLURM")] == ["SLURM_CONF"]
    assert own_job.isdecimal() and own_job != "99999"
    assert secret not in found.values()
    assert b"gpushare-node" in recorded and secret.encode() not in recorded


def test_an_unknown_node_gives_slurms_own_error(start: Start) -> None:
    with pytest.raises(NodeError, match=r"srun: error: .*nosuch|Invalid node name|Requested node") as failure:
        start("nosuch")
    assert "\n" not in str(failure.value)
