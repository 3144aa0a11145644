"""Tests of kernels in pods, with the real kubectl and a double of the API server. Skipped without a recent kubectl."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cluster.channel.messages import Coordinator, NodeError, Running

from ..support.polling import wait_until
from .conftest import WAIT, RemoteNotebook
from .kubernetes_api import KubernetesApi

Start = Callable[..., RemoteNotebook]
PODS = ("gpushare-ada-0", "gpushare-ada-1")
MEMORY = 4 << 20
CELL = f"""
from jupyter_gpushare.demo.gpu import Gpu
gpu = Gpu()
array = gpu.full({MEMORY // 4}, 1.0)
launches = gpu.work(array, 0.1)
"""
FIRST_VERSION = (1, 31)  # that uses WebSockets by default, as the double does


def version_of_kubectl() -> tuple[int, int]:
    """Return the version of kubectl; (0, 0) without kubectl."""
    if not shutil.which("kubectl"):
        return 0, 0
    done = subprocess.run(["kubectl", "version", "--client", "--output=json"], capture_output=True, check=False)
    found = json.loads(done.stdout or "{}").get("clientVersion", {"major": "0", "minor": "0"})
    return int(found["major"]), int(found["minor"].rstrip("+"))


pytestmark = pytest.mark.skipif(version_of_kubectl() < FIRST_VERSION, reason="needs kubectl 1.31 or later")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesApi]:
    """Start an API server with two pods on different nodes."""
    environments = {}
    for pod in PODS:
        folder = tmp_path / pod
        (folder / "run").mkdir(parents=True, mode=0o700)
        environments[pod] = {
            "HOSTNAME": pod,
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_RUNTIME_DIR": str(folder / "run"),
            "GPUSHARE_SOCKET": str(folder / "c.sock"),
            "GPUSHARE_LOCK_DIR": str(folder / "locks"),
            "GPUSHARE_SIM_STATE": str(folder / "devices"),
        }
    api = KubernetesApi(tmp_path, environments)
    monkeypatch.setenv("KUBECONFIG", str(api.kubeconfig))
    yield api
    api.close()


@pytest.fixture
def start(cluster: KubernetesApi, start_notebook: Start) -> Start:
    def start_on(pod: str, **settings: str) -> RemoteNotebook:
        addresses = dict.fromkeys([*PODS, pod], "127.0.0.1")
        return start_notebook(pod, engine="kubectl", nodes=list(PODS), addresses=addresses, **settings)

    return start_on


def allocated(notebook: RemoteNotebook) -> dict[str, int]:
    """Return the allocated bytes of each client of the coordinator on the notebook's node."""
    kernel = notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
    status = kernel.request(Coordinator(message={"type": "status"})).result(WAIT)
    return {one["id"]: one["allocated"] for one in status["clients"]}


def test_a_gpu_cell_in_a_pod_of_each_node_has_the_coordinator_of_its_node(start: Start) -> None:
    notebooks = {pod: start(pod) for pod in PODS}
    for pod, notebook in notebooks.items():
        assert notebook.value("__import__('os').environ['HOSTNAME']") == pod
        content = notebook.run(CELL)
        assert content["status"] == "ok", content
        assert notebook.value("array.wrong(1.0 + launches)") == 0
        clients = allocated(notebook)
        assert list(clients) == [notebook.manager.kernel_id] and clients[notebook.manager.kernel_id] >= MEMORY
    for notebook in notebooks.values():
        notebook.manager.shutdown_kernel()
        kernel = notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
        assert kernel.request(Running()).result(WAIT) == []
        assert allocated(notebook) == {}


def test_variables_outlive_the_connection_to_the_api_server(start: Start, cluster: KubernetesApi) -> None:
    notebook = start(PODS[0])
    notebook.run("x = 41")
    cluster.end_sessions()
    wait_until(lambda: all(one.process and one.process.returncode is not None for one in cluster.sessions[:1]))
    notebook.interrupt_an_endless_cell()
    assert notebook.value("x + 1") == 42
    assert len(cluster.sessions) > 1


def test_an_agent_that_does_not_start_is_one_sentence(start: Start) -> None:
    with pytest.raises(NodeError) as failure:
        start(PODS[0], prefix="/nowhere")
    sentence = str(failure.value)
    assert "/nowhere/bin/python" in sentence and "Defaulted container" not in sentence and "\n" not in sentence


def test_a_pod_that_is_not_there_is_the_sentence_of_kubectl(start: Start) -> None:
    with pytest.raises(NodeError, match='pods "gpushare-ada-9" not found') as failure:
        start("gpushare-ada-9")
    assert "\n" not in str(failure.value)
