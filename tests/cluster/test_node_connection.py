"""Tests of a server's connection to a node agent, by the command of an engine."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from jupyter_gpushare.cluster import node_connection
from jupyter_gpushare.cluster.channel.messages import NodeError, Running
from jupyter_gpushare.cluster.channel.sealed_channel import SealedChannel
from jupyter_gpushare.cluster.node_connection import NodeConnection
from jupyter_gpushare.cluster.settings import GpuShareCluster

from ..support.polling import wait_until
from .conftest import WAIT, Node, start_request


def test_lines_of_a_shell_before_the_greeting_are_no_error(state: Path) -> None:
    agent = " ".join(GpuShareCluster().command("localhost"))
    connection = NodeConnection("n", ["sh", "-c", f"echo Welcome; echo 'Last login: today'; exec {agent}"])
    assert connection.request(Running()).result(WAIT) == []
    connection.close()


def test_an_agent_of_another_version_is_refused_at_once() -> None:
    greeting = SealedChannel(is_server=False).greeting().decode().replace('"gpushare-node": 1', '"gpushare-node": 7')
    connection = NodeConnection("n1", ["sh", "-c", f"echo '{greeting.strip()}'; sleep 600"])
    with pytest.raises(NodeError, match=r"the other end has version 7 of the messages, and this end has version 1"):
        connection.request(Running()).result(WAIT)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["sh", "-c", "echo 'srun: error: Invalid node name' >&2; exit 1"], "srun: error: Invalid node name"),
        (["sh", "-c", "exit 7"], "exit status 7"),
        (["/no/such/engine"], "the engine cannot run /no/such/engine: No such file"),
    ],
)
def test_an_engines_own_error_is_in_the_sentence(command: list[str], sentence: str) -> None:
    with pytest.raises(NodeError, match=sentence):
        NodeConnection("n1", command).request(Running()).result(WAIT)


def test_the_engine_ray_without_ray_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test hides an installed Ray."""
    (tmp_path / "ray.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NodeError) as failure:
        NodeConnection("n1", GpuShareCluster(engine="ray").command("n1")).request(Running()).result(WAIT)
    assert str(failure.value) == (
        "the node agent on n1 has ended: the engine ray cannot import Ray: No module named 'ray'; "
        "pip install 'jupyter-gpushare[ray]'"
    )


def test_the_engines_command_may_withdraw_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminated `srun` withdraws its job, which a killed one leaves behind."""
    withdrawn = tmp_path / "withdrawn"
    connection = NodeConnection(
        "n1",
        ["sh", "-c", f"trap 'touch {withdrawn}; exit' TERM; touch {withdrawn}.ready; while :; do sleep 0.05; done"],
    )
    wait_until(lambda: Path(f"{withdrawn}.ready").exists())
    monkeypatch.setattr(node_connection, "_WITHDRAWAL_SECONDS", WAIT)
    connection.end()
    assert withdrawn.exists()


def test_a_stopped_agent_that_reads_nothing_ends_its_connection(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is larger than the pipe, so that its write blocks."""
    monkeypatch.setattr(node_connection, "_PING_SECONDS", 0.1)
    node.request(Running())
    connection = node.connection
    os.kill(connection.process.pid, signal.SIGSTOP)
    monkeypatch.setattr(node_connection, "_NODE_SILENCE_SECONDS", 1.0)
    request = start_request(env={"LARGE": "x" * (2 << 20)})
    writer = threading.Thread(target=lambda: connection.request(request), daemon=True)
    writer.start()
    writer.join(WAIT)
    assert not writer.is_alive()
    wait_until(lambda: connection.failure)
    assert "no answer for 1 s" in str(connection.failure)


def test_an_agent_ends_with_the_pipe_of_its_server(node: Node) -> None:
    node.request(Running())
    process = node.connection.process
    assert process.stdin
    process.stdin.close()
    assert process.wait(WAIT) == 0
