"""Tests of simulations with nodes: placement on nodes, figures, and the list of nodes."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from jupyter_gpushare.cli import main
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.placement import STRATEGIES
from jupyter_gpushare.simulation.cluster.nodes import draw_pods, place_clients, run_nodes
from jupyter_gpushare.simulation.experiment import SERVERS, parse_variant, run
from jupyter_gpushare.simulation.workloads import node_list
from jupyter_gpushare.simulation.workloads.node_list import Node
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant, Workload

from .workloads import DEVICE, GB, busy_participant, some_notebooks

NODES = [Node("a", 1), Node("b", 2), Node("c", 4)]
DEVICES = sum(node.devices for node in NODES)


def job(name: str, part: float, gpus: int = 1, **times: float) -> Participant:
    """Return an endless job that asks for a part of each of its devices."""
    phases = itertools.cycle((0.0, 60.0))
    memory = int(part * 80 * GB) * gpus
    return Participant(name, (Cell(0.0, phases),), memory, quota=Quota(memory=memory), gpus=gpus, kind="job", **times)


def placed(rule: str, *participants: Participant, seconds: float = 100.0) -> tuple[dict[str, list[str]], int]:
    """Return the clients of each node, and the number of refused clients."""
    workload = Workload("test", (DEVICE,) * DEVICES, participants)
    workloads, refused = place_clients(NODES, workload, rule, seconds)
    return {one.name: [client.id for client in one.participants] for one in workloads}, refused


@pytest.mark.parametrize("rule", [*STRATEGIES, SERVERS])
def test_devices_of_a_client_are_on_one_node(rule: str) -> None:
    clients, refused = placed(rule, job("four", 1.0, 4), job("two", 1.0, 2), job("eight", 1.0, 8))
    assert (clients, refused) == ({"a": [], "b": ["two"], "c": ["four"]}, 1)


def test_the_strategy_of_the_daemon_selects_the_node() -> None:
    parts = [job("half", 0.5), job("other half", 0.5)]
    assert Counter(map(len, placed("pack", *parts)[0].values())) == {2: 1, 0: 2}
    assert Counter(map(len, placed("spread", *parts)[0].values())) == {1: 2, 0: 1}


def test_servers_select_the_node_with_the_least_work_for_each_device() -> None:
    jobs = [job("first", 0.1), job("second", 0.1), job("third", 0.1), job("fourth", 0.1, departs=50.0)]
    notebook = Participant("notebook", (), arrives=10.0)
    on_nodes, _ = placed(SERVERS, *jobs, notebook)
    assert on_nodes == {"a": ["third"], "b": ["second"], "c": ["first", "fourth", "notebook"]}
    on_nodes, _ = placed(SERVERS, *jobs, replace(notebook, arrives=60.0), job("last", 0.1, arrives=70.0))
    assert on_nodes["c"] == ["first", "fourth", "notebook", "last"]


def test_a_client_that_departs_makes_room() -> None:
    early, late = job("early", 1.0, 4, departs=50.0), job("late", 1.0, 4, arrives=60.0)
    assert placed("fgd", early, late)[0]["c"] == ["early", "late"]
    assert placed("fgd", early, replace(late, arrives=200.0))[0]["c"] == ["early"]


def test_one_node_has_the_figures_of_one_host() -> None:
    workload = some_notebooks(6, devices=(DEVICE,) * 2, hours=0.5)
    variant = parse_variant("interactive")
    alone = run(workload, variant, 1800.0).as_json()
    assert run_nodes([Node("n", 2)], workload, variant, 1800.0).as_json() == alone


def test_devices_of_unused_nodes_count() -> None:
    workload = Workload("test", (DEVICE,) * DEVICES, (busy_participant("one", 50.0),))
    advanced: list[float] = []
    results = run_nodes(NODES, workload, parse_variant("interactive"), 100.0, advanced.append)
    assert results.as_json()["utilisation"] == pytest.approx(50 / 100 / DEVICES, abs=1e-4)
    assert sum(advanced) == 100.0


def test_pods_are_drawn_until_they_ask_for_the_load() -> None:
    pods = [job("small", 0.25), job("gang", 1.0, 4)]
    drawn = draw_pods(pods, 80 * GB, 100, 0.8, seed=1)
    assert 80 <= sum(pod.memory for pod in drawn) / (80 * GB) < 84
    assert len({pod.id for pod in drawn}) == len(drawn)
    assert drawn == draw_pods(pods, 80 * GB, 100, 0.8, seed=1) != draw_pods(pods, 80 * GB, 100, 0.8, seed=2)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Write a small trace of pods and a list of nodes in the form of the openb trace."""
    nodes = [f"n{n},1,{2 + n % 3},T4\n" for n in range(6)]
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,gpu,model\n" + "".join(nodes))
    rows = [f"pod-{n},{1 + 3 * (n % 9 == 0)},{(300, 460, 700, 1000)[n % 4]},LS,0,900\n" for n in range(40)]
    (tmp_path / "pods.csv").write_text("name,num_gpu,gpu_milli,qos,creation_time,deletion_time\n" + "".join(rows))
    return tmp_path


def test_placements_are_compared_on_nodes(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rules = ("placement=spread", "placement=pack", "nodes_by=servers")
    policies = itertools.chain(*(("--policy", f"interactive:{rule}") for rule in rules))
    options = ["--nodes", str(traces / "nodes.csv"), "--trace", f"openb:{traces / 'pods.csv'}"]
    assert main(["simulate", *options, "--hours", "0.1", "--json", *policies]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"]["devices"] == 18
    spread, pack, servers = found["policies"].values()
    assert pack["fragmentation"] < min(spread["fragmentation"], servers["fragmentation"])
    assert 0.5 < pack["utilisation"] < 1


def test_a_list_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    """Spreadsheets write a byte-order mark, and end lines with CR and LF."""
    file = tmp_path / "nodes.csv"
    file.write_bytes(b"\xef\xbb\xbfsn,gpu\r\nn1,2\r\nn2,1\r\n")
    assert node_list.read(str(file)) == [Node("n1", 2), Node("n2", 1)]


def test_notebooks_run_beside_pods(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--nodes", str(traces / "nodes.csv"), "--trace", f"openb:{traces / 'pods.csv'}", "--notebooks", "20"]
    assert main(["simulate", *options, "--hours", "0.05", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"]["interactive"]["cells"]["short"]["count"] > 5


@pytest.mark.parametrize(
    ("content", "options", "complaint"),
    [
        ("name,gpu\nn1,2\n", (), "line 1: columns sn are missing: needed are sn, gpu"),
        ("sn,gpu\nn1,many\n", (), "line 2: sn='n1', gpu='many' (allowed are a name and 0 to 64 devices)"),
        (b"sn,gpu\nn1,2\nn\xff,1\n", (), "nodes.csv, line 3: invalid start byte (allowed is UTF-8)\n"),
        (f"sn,gpu\nn1,2\n{'n' * 200_000},1\n", (), "nodes.csv, line 3: field larger than field limit (131072)\n"),
        ('sn,gpu\n"n\n1",1\nn2,many\n', (), "line 4: sn='n2', gpu='many'"),
        ("sn,gpu\nn1,2\n", ("--policy", "fcfs:placement=foo"), "placement='foo' is unknown: allowed are spread"),
        ("sn,gpu\nn1,0\n", (), "no node of the list has a GPU"),
        ("sn,gpu\nn1,2\nn1,4\n", (), "two nodes have the same name"),
        ("sn,gpu\nn1,2\n", ("--devices", "4"), "--devices is not allowed with --nodes"),
        ("sn,gpu\nn1,2\n", ("--html", "x.html"), "--html is not allowed with --nodes"),
        (
            "sn,gpu\nn1,2\n",
            ("--policy", "fcfs:nodes_by=fgd"),
            "nodes_by=fgd is unknown: allowed is servers",
        ),
    ],
)
def test_an_invalid_list_is_refused_with_what_is_allowed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | bytes, options: tuple[str, ...], complaint: str
) -> None:
    file = tmp_path / "nodes.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert main(["simulate", "--nodes", str(file), "--trace", "notebooks:20", *options]) == 2
    assert complaint in capsys.readouterr().err


def test_options_of_nodes_need_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--notebooks", "5"]) == 2
    assert "--notebooks needs --nodes" in capsys.readouterr().err
    assert main(["simulate", "--policy", "fcfs:nodes_by=servers"]) == 2
    assert "nodes_by needs --nodes" in capsys.readouterr().err
