"""Tests of traces: written traces are read and simulated, and an error has the line of the problem."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.simulation.workloads import openb_trace, traces
from jupyter_gpushare.simulation.workloads.recorder import Recorder
from jupyter_gpushare.simulation.workloads.traces import CellLine, ClientLine, InvalidTrace
from jupyter_gpushare.simulation.workloads.workload import Workload

from .workloads import DEVICE, simulate

HEAD = '{"type": "trace", "version": 1}'
CLIENT = '{"type": "client", "id": "a", "memory": 1000}'
CELL = '{"type": "cell", "client": "a", "think": 1, "phases": [0.5, 2]}'


def written(folder: Path, *lines: str) -> str:
    path = folder / "trace.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_trace_is_simulated_as_written(tmp_path: Path) -> None:
    more = '{"type": "client", "id": "b", "at": 10, "until": 14, "quota": {"service": "offline"}}'
    endless = '{"type": "cell", "client": "b", "phases": [0, 1], "repeat": true}'
    trace = traces.read(
        written(tmp_path, HEAD, '{"type": "device", "memory": 2000}', CLIENT, CELL, CELL, more, endless)
    )
    assert trace.devices[0].memory == 2000
    assert trace.participants[1].quota.service == "offline"
    simulation = simulate(Workload("t", (DEVICE,), trace.participants), 100.0)
    assert [client.gpu_seconds for client in simulation.all_clients] == [
        pytest.approx(4.0),
        pytest.approx(4.0, abs=0.1),
    ]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([CLIENT], "line 1: the first line must be"),
        (['{"type": "trace", "version": 9}'], "line 1: version 9 is unknown: allowed is 1"),
        ([HEAD, CLIENT, "{"], "line 3: "),
        ([HEAD, '{"type": "pod"}'], "allowed types are trace, device, client, cell"),
        ([HEAD, CLIENT, CLIENT], "line 3: client 'a' has two lines"),
        ([HEAD, CELL], "line 2: client 'a' is unknown"),
        ([HEAD, CLIENT, CELL.replace("0.5", "-1")], "line 3: Expected `float` >= 0"),
        ([HEAD, CLIENT, CELL.replace("0.5", '"x"')], "line 3: Expected `float`"),
        ([HEAD, CLIENT.replace("}", ', "color": 1}')], "line 2: Object contains unknown field `color`"),
        ([HEAD, CLIENT.replace("}", ', "quota": {"share": 2}}')], "share=2 is out of range"),
        ([HEAD, CLIENT.replace("}", ', "step": 1e-9}')], "allowed are 0 and 0.001 s or more"),
        ([HEAD, CLIENT.replace("}", ', "until": 1, "at": 2}')], "departs at 1, before it arrives at 2"),
        ([HEAD, CLIENT, '{"type": "cell", "client": "a", "phases": [0, 1e-12], "repeat": true}'], "0.001 s or more"),
        ([HEAD], "the trace has no client"),
    ],
)
def test_invalid_line_is_refused_with_its_number(tmp_path: Path, lines: list[str], error: str) -> None:
    with pytest.raises(InvalidTrace) as raised:
        traces.read(written(tmp_path, *lines))
    assert error in str(raised.value)
    assert "trace.jsonl" in str(raised.value)


def pods(folder: Path, *rows: str) -> str:
    path = folder / "pods.csv"
    columns = (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    )
    path.write_text("\n".join([columns, *rows]) + "\n")
    return str(path)


def test_pods_of_openb_are_clients_with_a_part_of_the_device(tmp_path: Path) -> None:
    path = pods(
        tmp_path,
        "p1,1,1,1,500,,LS,Running,0,1000,0",
        "p2,1,1,0,0,,LS,Running,0,1000,0",
        "p3,1,1,2,1000,,BE,Running,500,1000,500",
    )
    trace = openb_trace.read(path, 3600.0, 80)
    half, pair = trace.participants
    assert (half.memory, half.arrives, half.departs, half.quota.service) == (40, 0.0, 3600.0, "online")
    assert (pair.memory, pair.gpus, pair.arrives, pair.quota.service) == (160, 2, 1800.0, "offline")
    phases = list(itertools.islice(half.cells[0].phases, 1, 21))  # type: ignore[index]
    assert sum(phases[::2]) == pytest.approx(sum(phases[1::2]))  # half of the time on the GPU
    assert traces.needed_devices(trace.participants, 80) == 3


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ("p1,1,1,1,5000,,LS,Running,0,1,0", "gpu_milli=5000"),
        ("p1,1,1,x,500,,LS,Running,0,1,0", "line 2: "),
        ("p1,1,1,1,500,,LS,Running,9,1,0", "from 9 to 1"),
        ("p1,1,1,1,500,,LS,Running,nan,1,0", "line 2: num_gpu=1, gpu_milli=500, from nan to 1 (allowed are num_gpu"),
        ("p1,1,1,1,500,,LS,Running,0,inf,0", "from 0 to inf"),
        ("p1,1,1,1,500,,LS,Running,0,1,0,5", "line 2: there are more values than the 11 columns"),
        ("p1,1,1,0,0,,LS,Running,0,1,0", "no pod of the trace has a GPU"),
    ],
)
def test_invalid_pod_is_refused_with_its_line(tmp_path: Path, row: str, error: str) -> None:
    with pytest.raises(InvalidTrace) as raised:
        openb_trace.read(pods(tmp_path, row), 3600.0, 80)
    assert error in str(raised.value)


def status(cells: int, busy: float, waited: float, allocated: int = 100) -> dict[str, Any]:
    client = {
        **{"id": "secret", "label": "/home/ann/secret.ipynb", "user": "ann", "devices": ["GPU-0"]},
        **{"quota": {"share": 0.0, "limit": 1.0, "memory": None, "resident": None, "service": "online"}},
        **{
            "allocated": allocated,
            "gpu_seconds": busy,
            "gpu_busy_seconds": busy,
            "wait_seconds": waited,
            "cells": cells,
        },
    }
    return {"devices": [{"uuid": "GPU-0", "memory_total": 1000}], "clients": [client]}


def test_recorded_trace_has_no_names(tmp_path: Path) -> None:
    recorder = Recorder()
    seen = [
        (0, 0, 0.0, 0.0),
        (5, 1, 0.0, 0.0),
        (9, 1, 1.0, 2.0),
        (15, 0, 4.0, 2.0),
        (16, 0, 4.5, 2.0),
        (30, 1, 4.5, 2.0),
    ]
    for time, cells, busy, waited in seen:
        recorder.on_snapshot(status(cells, busy, waited, 100 + time), 1000.0 + time)
    recorder.on_snapshot({"devices": [], "clients": []}, 1040.0)
    path = str(tmp_path / "trace")
    traces.write(path, recorder.lines())
    text = Path(path).read_text()
    assert "secret" not in text and "ann" not in text
    trace = traces.read(path)
    (client,) = trace.participants
    assert (trace.seconds, client.memory, client.departs) == (40.0, 130, 40.0)
    first, second = client.cells
    assert first.think == pytest.approx(5.0)
    # The cell took ten seconds with two of waiting, and half a second of GPU time was reported late.
    assert list(first.phases) == pytest.approx([1.75, 4.5, 1.75])
    assert (second.think, sum(second.phases)) == (pytest.approx(15.0), pytest.approx(10.0))


def test_trace_has_one_json_object_a_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    traces.write(str(path), [ClientLine(id="a"), CellLine(client="a", phases=[1.0])])
    assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == ["client", "cell"]


def test_program_without_cells_is_recorded_as_one_cell() -> None:
    recorder = Recorder()
    recorder.on_snapshot(status(0, 0.0, 0.0), 0.0)
    recorder.on_snapshot(status(0, 12.0, 10.0), 50.0)
    (cell,) = [line for line in recorder.lines() if isinstance(line, CellLine)]
    assert (len(cell.phases), sum(cell.phases[1::2]), sum(cell.phases)) == (8, pytest.approx(12.0), pytest.approx(40.0))
