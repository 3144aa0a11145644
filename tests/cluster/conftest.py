"""Fixtures with node agents, in processes of their own, on a host with a simulated device."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import zmq
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager
from traitlets.config import Config

from jupyter_gpushare.cluster import remote_provisioner
from jupyter_gpushare.cluster.channel.messages import ClientRequest, Connection, NodeError, Request, Running, Start
from jupyter_gpushare.cluster.daemon import node_tries
from jupyter_gpushare.cluster.daemon.messages import ChooseNode, ClusterStatus
from jupyter_gpushare.cluster.node import keeper, kernel_folder
from jupyter_gpushare.cluster.node_choice import SnapshotRequests
from jupyter_gpushare.cluster.node_connection import CONNECTIONS, NodeConnection
from jupyter_gpushare.cluster.remote_provisioner import RemoteProvisioner
from jupyter_gpushare.cluster.settings import GpuShareCluster
from jupyter_gpushare.cluster.start_queue import START_QUEUE
from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import address
from jupyter_gpushare.wire.client import Client, Unreachable
from jupyter_gpushare.wire.messages import Request as WireRequest
from jupyter_gpushare.wire.messages import Stop

from ..support.polling import wait_until
from ..support.ports import free_port

WAIT = 60.0
KERNEL = ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
NODES = ("n1", "n2")
# Python notices a signal that comes just before a call of `sleep` only after the call.
ENDLESS_CELL = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)"


class Node:
    """Node with its agent, which is started anew after its end."""

    def __init__(self) -> None:
        self._connection: NodeConnection | None = None

    @property
    def connection(self) -> NodeConnection:
        if self._connection is None or self._connection.failure:
            self._connection = NodeConnection("localhost", GpuShareCluster().command("localhost"))
        return self._connection

    def request(self, message: Request) -> Any:
        """Send a request, and return its result. Raise NodeError."""
        return self.connection.request(message).result(WAIT)

    def kill_agent(self) -> None:
        """Kill the agent as `kill -9` does, and wait until the server's side has noticed the end."""
        connection = self.connection
        pending = connection.request(Running())
        connection.process.kill()
        with contextlib.suppress(NodeError):
            pending.result(WAIT)
        wait_until(lambda: connection.failure)

    def close(self) -> None:
        if self._connection:
            self._connection.close()


def start_request(kernel: str = "k1", argv: list[str] | None = None, **options: Any) -> Start:
    public, secret = zmq.curve_keypair()
    connection = Connection(
        ip="127.0.0.1", key="secret", curve_publickey=public.decode(), curve_secretkey=secret.decode()
    )
    client = ClientRequest(client=kernel, token="0" * 32, simulate=True)
    values = {"kernel": kernel, "argv": argv or ["sleep", "600"], "connection": connection, "client": client}
    return Start(**{**values, **options})


def end_nodes_below(folder: Path) -> None:
    """End the kernels and the coordinators of nodes that have their folders there."""
    for file in glob("**/gpushare/*/kernels/*/state", root_dir=folder, recursive=True):
        try:
            found = json.loads((folder / file).read_text())
        except FileNotFoundError:
            continue  # The kernel has ended meanwhile.
        for name in ("keeper", "pid"):
            if keeper.start_ticks(found[name]) == found[f"{name}_ticks"]:
                with contextlib.suppress(ProcessLookupError):  # the process has ended meanwhile
                    os.kill(found[name], signal.SIGKILL)
    for socket_path in [*folder.glob("*/c.sock"), *folder.glob("*/run/gpushare/coordinator.sock")]:
        with contextlib.suppress(Unreachable), Client(str(socket_path), WAIT) as coordinator:
            coordinator.request(Stop())


@pytest.fixture(scope="module", autouse=True)
def no_coordinator_remains(own_host: Path) -> Iterator[None]:
    """End the coordinator of the node, because tests of other modules expect none."""
    yield
    path = str(address.runtime_directory() / "coordinator.sock")
    with contextlib.suppress(Unreachable), Client(path, WAIT) as coordinator:
        coordinator.request(Stop())
    wait_until(lambda: not address.is_accepting(path))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give the node a state directory without the kernels of other tests, and end its kernels afterwards."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield tmp_path / "state"
    for folder in kernel_folder.all_kernels():
        with contextlib.suppress(NodeError):
            kernel_env.unregister_client(kernel_env.Identity(folder.state()["client"], ""))
            for pid in folder.processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture
def node(state: Path) -> Iterator[Node]:
    made = Node()
    yield made
    made.close()


class RemoteNotebook:
    """Kernel on a node with a client."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client: BlockingKernelClient = manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(WAIT)

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the kernel, which must be a value of JSON."""
        answer = self.client.execute_interactive(
            "import json",
            user_expressions={"value": f"json.dumps({expression})"},
            output_hook=lambda _: None,
            timeout=WAIT,
        )
        found = answer["content"]["user_expressions"]["value"]
        assert found["status"] == "ok", found
        return json.loads(ast.literal_eval(found["data"]["text/plain"]))

    def use_gpu(self) -> None:
        """Run a cell on the GPU, and assert its result."""
        code = "from jupyter_gpushare.demo.gpu import Gpu; gpu = Gpu(); one, two = gpu.full(64, 1.0), gpu.full(64, 2.0)"
        reply = self.run(f"{code}; gpu.axpy(two, one, 3.0)")
        assert reply["status"] == "ok", reply
        assert self.value("two.wrong(5.0)") == 0

    def interrupt_an_endless_cell(self) -> None:
        """Run a cell without an end, interrupt the kernel, and assert that the cell ends by the interrupt."""
        endless = self.client.execute(ENDLESS_CELL, stop_on_error=False)
        while self.client.get_iopub_msg(timeout=WAIT)["msg_type"] != "stream":
            pass
        self.manager.interrupt_kernel()
        while (answer := self.client.get_shell_msg(timeout=WAIT))["parent_header"]["msg_id"] != endless:
            pass
        assert answer["content"]["ename"] == "KeyboardInterrupt"

    def run(self, code: str) -> dict[str, Any]:
        content: dict[str, Any] = self.client.execute_interactive(code, output_hook=lambda _: None, timeout=WAIT)[
            "content"
        ]
        return content


def write_kernelspec(
    folder: Path,
    name: str = "remote",
    argv: Sequence[str] = KERNEL,
    fields: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> None:
    """Add a kernelspec with this command and these fields, whose provisioner has these options."""
    spec = folder / "jupyter" / "kernels" / name
    spec.mkdir(parents=True)
    metadata = {
        "kernel_provisioner": {"provisioner_name": "gpushare-remote-provisioner", "config": options},
        "supported_encryption": ["curve"],
    }
    content = {"argv": argv, "display_name": name, "language": "python", "metadata": metadata, **fields}
    (spec / "kernel.json").write_text(json.dumps(content))


def add_kernelspec(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Add the kernelspec `remote`, whose kernels have simulated devices."""
    write_kernelspec(folder)
    patch.setenv("JUPYTER_PATH", str(folder / "jupyter"))
    patch.setenv("GPUSHARE_SIMULATE", "1")


@pytest.fixture
def start_notebook(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RemoteNotebook]]:
    """Provide a function that starts a kernel on a node with these values of `c.GpuShareCluster`.

    A request waits for long, because a busy machine may need more than the usual seconds to start a node agent. A node
    that has not answered in an earlier test gets requests again. The queue of starts is open, because a Jupyter server
    that has ended in this process has closed it.
    """
    START_QUEUE.open()
    add_kernelspec(tmp_path, monkeypatch)
    monkeypatch.setattr(RemoteProvisioner._answer, "__defaults__", (WAIT,))
    monkeypatch.setattr(remote_provisioner, "_snapshots", SnapshotRequests())
    started: list[KernelManager] = []
    clients: list[BlockingKernelClient] = []

    def start(node: str = "", kernel_id: str = "", device: str = "", **settings: Any) -> RemoteNotebook:
        config = Config({"GpuShareCluster": settings, "RemoteProvisioner": {"node": node, "device": device}})
        manager = KernelManager(kernel_name="remote", config=config)
        started.append(manager)
        manager.start_kernel(**({"kernel_id": kernel_id} if kernel_id else {}))
        notebook = RemoteNotebook(manager)
        clients.append(notebook.client)
        return notebook

    yield start
    for client in clients:
        client.stop_channels()
    for manager in started:
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)
    CONNECTIONS.close()
    end_nodes_below(tmp_path)


START_SECONDS = 60.0
# Other extensions take most of a server's start.
EXTENSIONS = {
    "jupyter_gpushare": True,
    "jupyter_lsp": False,
    "jupyter_server_terminals": False,
    "jupyterlab": False,
    "notebook": False,
    "notebook_shim": False,
}


class JupyterServer:
    """Jupyter server in a process of its own, with the folder `config` and a root folder in a folder."""

    def __init__(self, folder: Path, root: str = "work", **settings: Any) -> None:
        self.port = free_port()
        self.folder = folder
        work, config = folder / root, folder / "config"
        for made in (work, config):
            made.mkdir(exist_ok=True)
        content = {"GpuShareCluster": settings, "ServerApp": {"jpserver_extensions": EXTENSIONS}}
        (config / "jupyter_server_config.json").write_text(json.dumps(content))
        options = [f"--port={self.port}", "--IdentityProvider.token=t", f"--ServerApp.root_dir={work}"]
        command = [sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root", *options]
        env = {**os.environ, "JUPYTER_CONFIG_DIR": str(config)}
        self.log = work / "server.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        wait_until(self._is_ready, START_SECONDS)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        root = f"http://127.0.0.1:{self.port}/" + ("" if path.startswith("gpushare/") else "api/")
        request = urllib.request.Request(root + path, data, method=method)
        request.add_header("Authorization", "token t")
        with urllib.request.urlopen(request, timeout=WAIT) as answer:
            return json.loads(answer.read() or "null")

    def children(self, word: str) -> list[int]:
        """Return the processes that the server has started and whose command has this word."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # of a process that has ended meanwhile
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and word in (process / "cmdline").read_text():
                    found.append(int(process.name))
        return found

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError):
            self.request("GET", "sessions")
            return True
        return False


@pytest.fixture
def start_server(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., JupyterServer]]:
    """Provide a function that starts a server with the kernelspec `remote` and these values of `c.GpuShareCluster`."""
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    servers: list[JupyterServer] = []

    def start(root: str = "work", **settings: Any) -> JupyterServer:
        servers.append(JupyterServer(tmp_path, root, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def separate_nodes(folder: Path) -> dict[str, Any]:
    """Return settings with two nodes, which have folders, a coordinator and simulated devices of their own.

    A node does not answer while there is a file `NODE.lost`.
    """
    folders = {"XDG_STATE_HOME": "state", "XDG_RUNTIME_DIR": "run", "GPUSHARE_LOCK_DIR": "locks"}
    folders["GPUSHARE_SIM_STATE"] = "devices"
    words = " ".join(f"{name}={folder}/{{node}}/{part}" for name, part in folders.items())
    lost = f"test ! -e {folder}/{{node}}.lost || {{ echo no route to the host >&2; exit 1; }}"
    engine = f"sh -c '{lost}; mkdir -pm 700 {folder}/{{node}}/run; exec env {words} \"$@\"' sh {{agent}}"
    return {"engine": engine, "nodes": list(NODES), "addresses": dict.fromkeys(NODES, "127.0.0.1")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """Return a server with separate nodes for all tests of a module, which end no part of it."""
    folder = tmp_path_factory.mktemp("nodes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder / "state"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        add_kernelspec(folder, patch)
        made = JupyterServer(folder, **separate_nodes(folder))
        yield made
        made.kill()
    end_nodes_below(folder)


class Daemon:
    """Cluster daemon in a process of its own, with the settings of a folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.socket = str(folder / "cluster.sock")
        self.settings = {**separate_nodes(folder), "daemon": self.socket, **settings}
        (folder / "jupyter_server_config.json").write_text(json.dumps({"GpuShareCluster": self.settings}))
        self._env = {**os.environ, "JUPYTER_CONFIG_DIR": str(folder)}
        self._folder = folder
        self.start()

    def command(self, *options: str, name: str = "cluster") -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "jupyter_gpushare", name, *options]
        return subprocess.run(words, env=self._env, capture_output=True, text=True, timeout=WAIT)

    def start(self) -> None:
        """Start the daemon, and wait until all nodes have answered."""
        with (self._folder / "daemon.log").open("ab") as log:
            words = [sys.executable, "-m", "jupyter_gpushare", "cluster"]
            self.process = subprocess.Popen(words, env=self._env, stdout=log, stderr=log)
        wait_until(lambda: not any(node["message"] for node in self.nodes().values()), WAIT)

    def nodes(self) -> dict[str, Any]:
        """Return what the daemon knows of each node, with a message before its first answer."""
        try:
            return {node["name"]: node for node in self.request(ClusterStatus())["nodes"]}
        except Unreachable:
            assert self.process.poll() is None, (self._folder / "daemon.log").read_text()
            return {"": {"message": "the daemon does not answer"}}

    def request(self, message: WireRequest) -> Any:
        with Client(self.socket, WAIT) as client:
            return client.request(message)

    def choose(self, client: str, **options: Any) -> str:
        return str(self.request(ChooseNode(client=client, **options))["node"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT)


@pytest.fixture
def start_daemon(
    start_notebook: Callable[..., RemoteNotebook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Daemon]]:
    """Provide a function that starts a daemon with these values of `c.GpuShareCluster`.

    Starts in this process wait for the daemon for long, because a daemon on a busy machine may be late.
    """
    monkeypatch.setattr(node_tries, "_ANSWER_SECONDS", WAIT)
    started: list[Daemon] = []

    def start(**settings: Any) -> Daemon:
        started.append(Daemon(tmp_path, **settings))
        return started[-1]

    yield start
    for daemon in started:
        daemon.kill()
