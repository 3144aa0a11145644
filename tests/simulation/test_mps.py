"""Tests of CUDA's Multi-Process Service in the simulator: under `packed`, a share is a part of the device's threads."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli import main
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.interface.settings import Settings
from jupyter_gpushare.simulation.workloads.workload import Cell, Participant

from .workloads import DEVICE, CheckedSimulation, endless_participant, make_workload, simulate_shipped

SECONDS = 100.0


def job(name: str, share: float, **fields: Any) -> Participant:
    return replace(endless_participant(name, 0.0, 10.0), user=name, quota=Quota(share=share), **fields)


def speeds(*participants: Participant, mps: bool = True, count: int = 1, **settings: Any) -> list[float]:
    """Return the work of each client in a second."""
    workload = replace(make_workload(*participants), mps=mps, devices=(DEVICE,) * count)
    simulation = simulate_shipped(workload, SECONDS, **settings)
    return [client.gpu_seconds / SECONDS for client in simulation.all_clients]


def test_a_share_bounds_a_client_that_has_the_device_alone() -> None:
    assert speeds(job("a", 0.25), sharing="packed") == [pytest.approx(0.25, abs=0.01)]
    assert speeds(job("a", 0.25), sharing="packed", mps=False) == [pytest.approx(1.0, abs=0.01)]


def test_work_that_needs_fewer_threads_is_as_fast_as_alone() -> None:
    assert speeds(job("a", 0.25, intensity=0.2), sharing="packed") == [pytest.approx(1.0, abs=0.01)]
    assert speeds(job("a", 0.25, intensity=0.5), sharing="packed") == [pytest.approx(0.5, abs=0.01)]


def test_colocated_clients_have_their_shares_at_the_same_time() -> None:
    jobs = [job("a", 0.5), job("b", 0.3)]
    assert speeds(*jobs, sharing="packed") == pytest.approx([0.5, 0.3], abs=0.02)


def test_a_client_without_a_share_has_all_threads() -> None:
    assert speeds(job("a", 0.0), sharing="packed") == [pytest.approx(1.0, abs=0.01)]


@pytest.mark.parametrize("settings", [{}, {"sharing": "exclusive"}], ids=["shipped", "exclusive"])
def test_nothing_changes_where_clients_also_have_turns(settings: dict[str, str]) -> None:
    jobs = [job("a", 0.5), job("b", 0.3)]
    assert speeds(*jobs, **settings) == speeds(*jobs, mps=False, **settings)


def test_the_setting_of_the_device_counts() -> None:
    """Each of the two jobs has a device for itself."""
    jobs = [job("a", 0.25), job("b", 0.25)]
    assert sorted(speeds(*jobs, count=2, devices={"0": {"sharing": "packed"}})) == [
        pytest.approx(0.25, abs=0.01),
        pytest.approx(1.0, abs=0.01),
    ]


def test_a_new_share_holds_from_the_next_start_of_the_program_on() -> None:
    """CUDA fixes the part of the threads when the program starts."""
    cells = itertools.repeat(Cell(0.0, (0.0, 1000.0)))
    workload = replace(make_workload(job("a", 0.5, cells=cells, restarts=(60.0,))), mps=True)
    simulation = CheckedSimulation(workload, Settings(sharing="packed"))
    (client,) = simulation.all_clients
    simulation.run_until(10.0)
    simulation.handle_event(ev.QuotaChanged("a", Quota(share=0.25)))
    simulation.run_until(50.0)
    assert client.rate == 0.5
    simulation.run_until(80.0)
    assert client.rate == 0.25


def test_a_command_simulates_a_control_daemon(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "one"
    lines = [
        {"type": "trace", "version": 1},
        {"type": "client", "id": "a", "kind": "job", "quota": {"share": 0.25}},
        {"type": "cell", "client": "a", "phases": [0, 10], "repeat": True},
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def throughput(*options: str) -> float:
        arguments = ["simulate", "--trace", str(trace), "--hours", "0.1", "--set", "sharing=packed", "--json"]
        assert main([*arguments, *options]) == 0
        output = json.loads(capsys.readouterr().out)
        assert output["parameters"].get("mps", False) == bool(options)
        return float(next(iter(output["policies"].values()))["throughput"])

    assert throughput("--mps") == pytest.approx(0.25, abs=0.01)
    assert throughput() == pytest.approx(1.0, abs=0.01)
