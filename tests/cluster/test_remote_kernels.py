"""Tests of kernels on nodes, with jupyter_client's manager and real kernels."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq

from jupyter_gpushare.cluster import kernel_records, node_connection
from jupyter_gpushare.cluster.channel.messages import NodeError, Running
from jupyter_gpushare.cluster.node import keeper, kernel_folder
from jupyter_gpushare.cluster.node_connection import CONNECTIONS
from jupyter_gpushare.cluster.remote_kernel import RemoteKernel
from jupyter_gpushare.cluster.remote_provisioner import RemoteProvisioner
from jupyter_gpushare.cluster.settings import GpuShareCluster
from jupyter_gpushare.server import node_snapshots
from jupyter_gpushare.wire import address
from jupyter_gpushare.wire.client import CoordinatorError
from jupyter_gpushare.wire.messages import Status, Suspend

from ..support.polling import wait_until
from .conftest import WAIT, RemoteNotebook

Start = Callable[..., RemoteNotebook]


def kill_agents() -> None:
    for connection in CONNECTIONS.present():
        connection.process.kill()
        wait_until(lambda failing=connection: failing.failure)


def test_variables_outlive_agents_and_the_kernel_can_be_interrupted(start_notebook: Start) -> None:
    notebook = start_notebook()
    notebook.run("x = 41")
    for _ in range(3):
        kill_agents()
        assert notebook.value("x + 1") == 42
        assert notebook.manager.is_alive()
    notebook.interrupt_an_endless_cell()
    assert notebook.value("x + 1") == 42


def test_a_restart_keeps_the_ports_and_an_end_leaves_nothing(start_notebook: Start) -> None:
    notebook = start_notebook()
    notebook.run("x = 41")
    before = notebook.manager.get_connection_info()
    notebook.manager.restart_kernel()
    notebook.client.wait_for_ready(WAIT)
    assert notebook.manager.get_connection_info() == before
    assert notebook.value("'x' in dir()") is False
    (folder,) = kernel_folder.all_kernels()
    pids = list(folder.processes())
    notebook.manager.shutdown_kernel()
    assert kernel_folder.all_kernels() == []
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def test_variables_of_the_server_reach_the_kernel_unchanged(
    start_notebook: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the variables of the kernelspec contain variables of the node."""
    spec = tmp_path / "jupyter" / "kernels" / "remote" / "kernel.json"
    env = {"WORD": "${HOME}/$$word", "BOTH": "kernelspec"}
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "env": env}))
    password = "pa$$word$HOME${HOME}$"
    monkeypatch.setenv("MY_PASSWORD", password)
    monkeypatch.setenv("BOTH", "server")
    notebook = start_notebook(variables=["MY_PASSWORD", "BOTH", "MISSING"])
    found = notebook.value("dict(__import__('os').environ)")
    assert found["MY_PASSWORD"] == password
    assert (found["WORD"], found["BOTH"]) == (f"{Path.home()}/$word", "kernelspec")


def test_the_kernel_is_a_client_of_the_nodes_coordinator(start_notebook: Start) -> None:
    notebook = start_notebook(variables=["JPY_SESSION_NAME", "MINE"])
    env = notebook.value("dict(__import__('os').environ)")
    assert env["GPUSHARE_CLIENT"] == notebook.manager.kernel_id
    assert "libgpushare" in env["LD_PRELOAD"]
    text = notebook.value("str(get_ipython().run_line_magic('gpushare', 'status'))")
    assert "no coordinator" not in text.lower()


def test_the_end_of_a_kernel_is_noticed(start_notebook: Start) -> None:
    notebook = start_notebook()
    notebook.client.execute("import os; os._exit(3)")
    wait_until(lambda: not notebook.manager.is_alive())
    assert notebook.manager.provisioner is not None
    assert asyncio.run(notebook.manager.provisioner.poll()) == 3


def test_channels_are_encrypted(start_notebook: Start) -> None:
    """A client without the kernel's key gets no answer, not even from the heartbeat."""
    notebook = start_notebook()
    info = notebook.manager.get_connection_info()
    assert info["curve_publickey"]
    with zmq.Context() as context, context.socket(zmq.REQ) as probe:
        probe.linger = 0
        probe.connect(f"tcp://{info['ip']}:{info['hb_port']}")
        probe.send(b"ping")
        assert probe.poll(500) == 0
    assert notebook.client.is_alive()


def test_a_kernel_without_encryption_starts_only_if_the_setting_allows_it(
    start_notebook: Start, tmp_path: Path
) -> None:
    spec = tmp_path / "jupyter" / "kernels" / "remote" / "kernel.json"
    content = json.loads(spec.read_text())
    del content["metadata"]["supported_encryption"]
    spec.write_text(json.dumps(content))
    with pytest.raises(NodeError, match="the kernel remote cannot encrypt its connections"):
        start_notebook()
    notebook = start_notebook(encryption="off")
    assert "curve_publickey" not in notebook.manager.get_connection_info()
    assert notebook.value("6 * 7") == 42


def test_a_manager_of_a_later_server_adopts_the_kernel(start_notebook: Start) -> None:
    first = start_notebook()
    first.run("x = 41")
    kernel = first.manager.kernel_id
    record = kernel_records.load(kernel)
    assert record is not None and record.has_server
    # As if that server had ended, which had a version without engines and roots in its records.
    kernel_records.save(msgspec.structs.replace(record, server_ticks=1, engine="", root=""))
    assert [one.kernel for one in kernel_records.without_server()] == [kernel]
    kill_agents()
    second = start_notebook(kernel_id=kernel)
    assert second.value("x + 1") == 42
    assert list(kernel_records.without_server()) == []
    second.interrupt_an_endless_cell()
    second.manager.restart_kernel()
    second.client.wait_for_ready(WAIT)
    assert second.value("'x' in dir()") is False
    second.manager.shutdown_kernel()
    assert kernel_records.load(kernel) is None


def test_a_kernel_has_one_server(start_notebook: Start) -> None:
    notebook = start_notebook()
    record = kernel_records.load(notebook.manager.kernel_id)
    assert record is not None
    parent = os.getppid()
    other = msgspec.structs.replace(record, server=parent, server_ticks=keeper.start_ticks(parent))
    kernel_records.save(other)
    assert kernel_records.claim(record.kernel) is None
    with pytest.raises(NodeError, match="another Jupyter server has the kernel"):
        start_notebook(kernel_id=record.kernel)
    other = msgspec.structs.replace(record, server_ticks=1, engine="another digest")
    kernel_records.save(other)
    with pytest.raises(NodeError, match="has another engine"):
        start_notebook(kernel_id=record.kernel)
    assert kernel_records.load(record.kernel) == other
    kernel_records.save(msgspec.structs.replace(record, server_ticks=1))
    assert kernel_records.claim(record.kernel) == record
    assert notebook.value("6 * 7") == 42


def test_a_kernel_without_a_record_does_not_remain(start_notebook: Start, state: Path) -> None:
    folder = address.state_directory() / "remote-kernels"
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.touch()
    with pytest.raises(NodeError, match=r"the server cannot save the record of the kernel: .*remote-kernels"):
        start_notebook()
    wait_until(lambda: kernel_folder.all_kernels() == [])


def set_seconds(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let a request wait for so long."""
    patch.setattr(RemoteProvisioner._answer, "__defaults__", (seconds,))


def wait_briefly_for_one_agent(patch: pytest.MonkeyPatch, then: Callable[[], object] = lambda: None) -> None:
    """Let a request wait for 0.2 s, and for much longer once it has tried to end the agent and has called `then`."""
    end = RemoteKernel.end_agent

    def end_agent(kernel: RemoteKernel) -> None:
        end(kernel)
        then()
        set_seconds(patch, WAIT)

    patch.setattr(RemoteKernel, "end_agent", end_agent)
    set_seconds(patch, 0.2)


def test_an_agent_that_hangs_is_replaced(start_notebook: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = start_notebook()

    def hang() -> None:
        for connection in CONNECTIONS.present():
            os.killpg(connection.process.pid, signal.SIGSTOP)
        wait_briefly_for_one_agent(monkeypatch)

    hang()
    notebook.interrupt_an_endless_cell()
    hang()
    notebook.manager.shutdown_kernel()
    assert kernel_folder.all_kernels() == []


def test_an_interrupt_arrives_after_an_engine_has_refused_agents(start_notebook: Start, tmp_path: Path) -> None:
    """Slurm refuses the first agents after its daemons were killed."""
    refusals = tmp_path / "refusals"
    refusals.mkdir()
    script = f'for one in {refusals}/*; do rm "$one" 2>/dev/null && echo refused >&2 && exit 1; done; exec "$@"'
    notebook = start_notebook(engine=f"sh -c '{script}' sh {{agent}}")
    for number in range(4):
        (refusals / str(number)).touch()
    kill_agents()
    notebook.interrupt_an_endless_cell()
    assert list(refusals.iterdir()) == []


class SlowEngine:
    """Engine that starts agents only while the file `go` exists, and a notebook that counts its interrupts in a cell.

    A request waits for 0.2 s. After `go_on_after_the_first_wait` the engine goes on then.
    """

    def __init__(self, start_notebook: Start, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self._starts, self._end = folder / "go", folder / "starts", folder / "end"
        self.go.touch()
        script = f'echo started >> {self._starts}; while test ! -e {self.go}; do sleep 0.05; done; exec "$@"'
        self.notebook = start_notebook(engine=f"sh -c '{script}' sh {{agent}}")
        count = "signal.signal(signal.SIGINT, lambda *_: interrupts.append(1)); print('begun', flush=True)"
        wait = f"while not os.path.exists({str(self._end)!r}): time.sleep(0.01)"
        self.notebook.client.execute(f"import os, signal, time; interrupts = []; {count}\n{wait}")
        while self.notebook.client.get_iopub_msg(timeout=WAIT)["msg_type"] != "stream":
            pass
        self.go.unlink()
        kill_agents()
        wait_until(lambda: self.starts() == 2)  # else the wait may end before the engine has begun
        self._patch = monkeypatch
        set_seconds(monkeypatch, 0.2)

    def go_on_after_the_first_wait(self) -> None:
        wait_briefly_for_one_agent(self._patch, self.go.touch)

    def starts(self) -> int:
        """Return the number of agents."""
        return len(self._starts.read_text().split())

    def counts(self) -> tuple[int, int]:
        """Return the number of interrupts, after an answer of the agent, and the number of agents."""
        connection = self.notebook.manager.provisioner._remote_kernel()  # type: ignore[union-attr]
        connection.request(Running()).result(WAIT)  # after the interrupts
        self._end.touch()
        return self.notebook.value("len(interrupts)"), self.starts()


@pytest.fixture
def slow_engine(start_notebook: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlowEngine:
    return SlowEngine(start_notebook, tmp_path, monkeypatch)


def test_an_interrupt_arrives_once_by_an_agent_that_starts_slowly(slow_engine: SlowEngine) -> None:
    slow_engine.go_on_after_the_first_wait()
    slow_engine.notebook.manager.interrupt_kernel()
    assert slow_engine.counts() == (1, 2)


def test_an_interrupt_that_has_failed_ends_no_later_cell(slow_engine: SlowEngine) -> None:
    with pytest.raises(NodeError, match=r"has not answered within 0\.2 s"):
        slow_engine.notebook.manager.interrupt_kernel()
    slow_engine.go.touch()
    assert slow_engine.counts() == (0, 2)


async def test_an_action_that_has_failed_has_no_effect_later(
    slow_engine: SlowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_snapshots, "_ANSWER_SECONDS", 0.2)
    kernels: Any = SimpleNamespace(nodes=lambda: {"localhost"})
    nodes = node_snapshots.NodeSnapshots(kernels, list, lambda: False, lambda: None, logging.getLogger(__name__))
    client = slow_engine.notebook.manager.kernel_id
    await asyncio.to_thread(wait_until, CONNECTIONS.present, WAIT)
    with pytest.raises(CoordinatorError, match=r"has not answered within 0\.2 s"):
        await nodes.request("localhost", Suspend(client=client))
    slow_engine.go.touch()
    monkeypatch.setattr(node_snapshots, "_ANSWER_SECONDS", WAIT)
    (found,) = (await nodes.request("localhost", Status()))["clients"]
    assert (found["id"], found["suspended"]) == (client, False)


def test_an_interrupt_replaces_an_agent_that_has_not_started_for_long(
    slow_engine: SlowEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_connection, "_START_SECONDS", 0.0)
    slow_engine.go_on_after_the_first_wait()
    slow_engine.notebook.manager.interrupt_kernel()
    assert slow_engine.counts() == (1, 3)


def test_the_reason_of_an_early_end_is_logged(start_notebook: Start, caplog: pytest.LogCaptureFixture) -> None:
    notebook = start_notebook()
    notebook.client.execute("import os, sys; print('no licence', file=sys.__stderr__, flush=True); os._exit(7)")
    wait_until(lambda: "no licence" in caplog.text)
    assert "status 7" in caplog.text


def test_a_start_that_times_out_has_the_engines_own_reason(start_notebook: Start) -> None:
    engine = "sh -c 'echo the node is drained >&2; sleep 600' {agent}"
    command = GpuShareCluster(engine=engine).command("localhost")
    wait_until(lambda: CONNECTIONS.connection("localhost", command).errors, WAIT)
    with pytest.raises(NodeError) as failure:
        start_notebook(engine=engine, start_timeout="0.2")
    assert str(failure.value) == "the node localhost has not answered within 0.2 s: the node is drained"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"engine": "/no/such/engine {agent}"}, "the engine cannot run /no/such/engine"),
        ({"engine": "sh -c 'echo refused >&2; exit 1' {agent}"}, "the node agent on localhost has ended: refused"),
        ({"engine": "ssh", "nodes": ["no-such-node.invalid"]}, "no-such-node.invalid is unknown"),
        (
            {"engine": "sh -c 'sleep 600' {agent}", "start_timeout": "0.2"},
            "has not answered within 0.2 s",
        ),
        ({"prefix": "/no/such/prefix", "engine": "local"}, "the engine cannot run /no/such/prefix/bin/python"),
    ],
)
def test_a_failed_start_is_one_sentence(start_notebook: Start, settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(NodeError, match=sentence) as failure:
        start_notebook(**settings)
    assert "\n" not in str(failure.value)
    assert kernel_folder.all_kernels() == []


def test_the_working_directory_must_exist_on_the_node(start_notebook: Start, tmp_path: Path) -> None:
    notebook = start_notebook()
    notebook.manager.shutdown_kernel(now=True)
    with pytest.raises(NodeError, match="the node has no folder /no/such/folder"):
        notebook.manager.start_kernel(cwd="/no/such/folder")
