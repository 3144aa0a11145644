"""Tests of generated sessions: lengths, devices and tasks, and the GPU hours that sharing saves."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from statistics import median

import pytest

from jupyter_gpushare.cli import main
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.simulation.cluster.nodes import run_nodes
from jupyter_gpushare.simulation.experiment import parse_variant, run
from jupyter_gpushare.simulation.workloads.node_list import Node
from jupyter_gpushare.simulation.workloads.notebook_sessions import HOURS, generate_sessions
from jupyter_gpushare.simulation.workloads.workload import Participant, Workload

from .workloads import DEVICE

DAYS = 2 * 86400.0
SESSIONS = generate_sessions(2000, seconds=DAYS, devices=(DEVICE,), seed=1).participants


def test_sessions_have_the_published_quantiles() -> None:
    lengths = sorted((one.departs or 0.0) - one.arrives for one in SESSIONS)
    assert median(lengths) / 60 == pytest.approx(1256, rel=0.2)
    tasks = [(cell.think, sum(cell.phases)) for one in SESSIONS for cell in one.cells[1:]]
    assert median(length for _, length in tasks) / 60 == pytest.approx(11.0, rel=0.1)
    assert sorted(length for _, length in tasks)[len(tasks) * 3 // 4] / 60 == pytest.approx(21.0, rel=0.1)
    between_starts = [
        (task.think + sum(before.phases)) / 60 for one in SESSIONS for before, task in itertools.pairwise(one.cells)
    ]
    assert median(between_starts) == pytest.approx(19.0, rel=0.1)
    gpus = Counter(one.gpus for one in SESSIONS)
    assert [gpus[number] / len(SESSIONS) for number in (1, 4, 8)] == pytest.approx([0.55, 0.22, 0.24], abs=0.04)


def test_tasks_take_the_documented_part_of_the_reserved_hours() -> None:
    seconds = HOURS * 3600
    reserved = used = without_task = 0.0
    for seed in range(4):
        for one in generate_sessions(1000, seconds=seconds, devices=(DEVICE,), seed=seed).participants:
            end, now = min(one.departs or 0.0, seconds), one.arrives
            before = used
            for cell in one.cells:
                begins, now = now + cell.think, now + cell.think + sum(cell.phases)
                used += one.gpus * max(0.0, min(now, end) - begins)
            reserved += one.gpus * (end - one.arrives)
            without_task += used == before
    assert used / reserved == pytest.approx(0.19, abs=0.02)
    assert without_task / 4000 == pytest.approx(0.30, abs=0.03)


def test_a_seed_gives_the_same_sessions() -> None:
    one, again, other = (generate_sessions(20, seconds=DAYS, devices=(DEVICE,), seed=n).participants for n in (1, 1, 2))
    assert one == again != other


def test_saved_hours_are_those_of_the_sessions_without_those_of_the_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = tmp_path / "nodes.csv"
    nodes.write_text("sn,gpu\na,8\nb,8\n")
    command = ["simulate", "--nodes", str(nodes), "--trace", "sessions:15", "--hours", "1", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    results = found["policies"]["interactive"]
    sessions = generate_sessions(15, seconds=3600.0, devices=(DEVICE,), seed=1).participants
    reserved = sum(one.gpus * (min(one.departs or 0.0, 3600.0) - one.arrives) for one in sessions) / 3600
    assert results["reserved_gpu_hours"] == pytest.approx(reserved, abs=0.01)
    assert results["saved_gpu_hours"] == pytest.approx(reserved - 16, abs=0.01)
    assert found["parameters"]["nodes"] == 2
    assert main(command[:-1]) == 0
    assert "reserved" in capsys.readouterr().out


@pytest.mark.parametrize("is_cluster", [False, True])
def test_a_refused_client_saves_no_hours(is_cluster: bool) -> None:
    jobs = [Participant(name, (), quota=Quota(share=0.8), kind="job") for name in "ab"]
    workload, variant = Workload("two", (DEVICE,), tuple(jobs)), parse_variant("interactive")
    results = run_nodes([Node("n", 1)], workload, variant, 3600.0) if is_cluster else run(workload, variant, 3600.0)
    found = results.as_json()
    assert (found["refused"], found["reserved_gpu_hours"], found["saved_gpu_hours"]) == (1, 1.0, 0.0)
