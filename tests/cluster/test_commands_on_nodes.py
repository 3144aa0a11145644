"""Tests of the option `--node`, with which commands run on nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.cli import nodes
from jupyter_gpushare.launch import kernel_env

from ..support.command import run_command


@pytest.fixture
def configuration(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write settings with two nodes, each of which has a coordinator of its own."""
    for node in ("gpu1", "gpu2"):
        (tmp_path / node).mkdir(mode=0o700)
    engine = f"sh -c 'GPUSHARE_SOCKET={tmp_path}/{{node}}/c.sock; export GPUSHARE_SOCKET; \"$@\"' sh {{agent}}"
    file = tmp_path / "config" / "jupyter_server_config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"GpuShareCluster": {"engine": engine, "nodes": ["gpu1", "gpu2"]}}))
    monkeypatch.setenv("JUPYTER_CONFIG_DIR", str(file.parent))
    yield tmp_path


def register(socket: Path, client: str) -> None:
    """Register a client with the coordinator at the socket, which starts for that."""
    registered = kernel_env.register_client(
        kernel_env.Identity.new(client), label=client, socket=str(socket), simulate=True, wait=20.0
    )
    assert not registered.note


def test_commands_run_on_the_node_or_on_all_nodes(configuration: Path) -> None:
    for node in ("gpu1", "gpu2"):
        register(configuration / node / "c.sock", f"client-of-{node}")
    done = run_command("status", "--json", "--node", "gpu2")
    assert [client["label"] for client in json.loads(done.stdout)["clients"]] == ["client-of-gpu2"]
    done = run_command("quota", "client-of-gpu1", "memory=256MiB", "--node=gpu1")
    assert (done.returncode, "256MiB" in done.stdout or "256 MiB" in done.stdout) == (0, True), done.stderr
    done = run_command("status", "--node", "all")
    assert done.returncode == 0
    places = [done.stdout.index(text) for text in ("--- gpu1", "client-of-gpu1", "--- gpu2", "client-of-gpu2")]
    assert places == sorted(places)
    found = json.loads(run_command("status", "--json", "--node", "all").stdout)
    assert {node: [client["label"] for client in status["clients"]] for node, status in found.items()} == {
        node: [f"client-of-{node}"] for node in ("gpu1", "gpu2")
    }
    done = run_command("suspend", "nobody", "--node", "gpu1")
    assert done.returncode == 2 and "nobody" in done.stderr


def test_the_doctor_of_a_node_leaves_out_the_host_of_jupyter(configuration: Path) -> None:
    """A home directory that the hosts share has the settings of the Jupyter server on a node as well."""
    file = configuration / "config" / "jupyter_server_config.json"
    settings = json.loads(file.read_text())
    settings["GpuShareCluster"]["daemon"] = str(configuration / "daemon.sock")
    file.write_text(json.dumps(settings))

    def subjects(*words: str) -> set[str]:
        return {one["subject"] for one in json.loads(run_command("doctor", "--json", "--simulate", *words).stdout)}

    assert subjects() - subjects("--node", "gpu1") == {"cluster daemon", "provisioner", "kernels"}


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (("status", "--node", "gpu9"), 2, "'gpu9' is not in c.GpuShareCluster.nodes: allowed are gpu1, gpu2 and all"),
        (("status", "--node", ""), 2, "'' is not in c.GpuShareCluster.nodes: allowed are gpu1, gpu2 and all"),
        (("status", "--node="), 2, "'' is not in c.GpuShareCluster.nodes: allowed are gpu1, gpu2 and all"),
        (("status", "--node", "gpu1"), 1, "no coordinator answers"),
        (("status", "--watch", "--node", "all"), 2, "--watch needs one node: allowed are gpu1, gpu2"),
        (("status", "--node"), 2, "--node: expected one argument"),
    ],
)
def test_errors_are_those_of_the_option_or_of_the_command(
    configuration: Path, words: tuple[str, ...], status: int, complaint: str
) -> None:
    done = run_command(*words)
    assert (done.returncode, complaint in done.stderr) == (status, True), done.stderr


def test_a_node_that_hangs_delays_no_other_node(
    configuration: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = configuration / "config" / "jupyter_server_config.json"
    engine = "sh -c 'test {node} = gpu1 && exec sleep 600; echo {node} answers' sh {agent}"
    file.write_text(json.dumps({"GpuShareCluster": {"engine": engine, "nodes": ["gpu1", "gpu2"]}}))
    monkeypatch.setattr(nodes, "_NODE_SECONDS", 10.0)
    assert nodes.run_on_nodes("all", ["status"]) == 1
    shown = capfd.readouterr()
    assert shown.out == "--- gpu1\n--- gpu2\ngpu2 answers\n"
    assert shown.err == "gpu1: no answer within 10 s\n"


def test_invalid_settings_are_named(configuration: Path) -> None:
    file = configuration / "config" / "jupyter_server_config.json"
    file.write_text(json.dumps({"GpuShareCluster": {"engine": "teleport"}}))
    done = run_command("status", "--node", "gpu1")
    assert done.returncode == 2 and "GpuShareCluster.engine: 'teleport' is neither" in done.stderr


@pytest.mark.parametrize(
    ("words", "node", "rest"),
    [
        (["status"], None, ["status"]),
        (["status", "--node", "n", "--json"], "n", ["status", "--json"]),
        (["doctor", "--node=n"], "n", ["doctor"]),
        (["run", "--", "train", "--node", "n"], None, ["run", "--", "train", "--node", "n"]),
        (["kernelspec", "install", "--node", "n"], None, ["kernelspec", "install", "--node", "n"]),
    ],
)
def test_only_commands_about_a_host_have_the_option(words: list[str], node: str | None, rest: list[str]) -> None:
    assert (nodes.take_node(words), words) == (node, rest)
