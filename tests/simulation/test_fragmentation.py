"""Tests of fragmentation by placement strategy, on traces in the format of openb."""

from __future__ import annotations

import csv
import os
import random
from pathlib import Path

import pytest

from jupyter_gpushare.simulation.cluster import fragmentation
from jupyter_gpushare.simulation.experiment import parse_variant

SIZES = [(1000, 1)] * 11 + [(810, 1)] * 3 + [(470, 1)] * 2 + [(650, 1), (320, 1), (230, 1), (1000, 8), (1000, 2)]


def write(folder: Path, pods: list[tuple[int, int]], nodes: list[int]) -> None:
    with (folder / fragmentation.PODS).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "cpu_milli", "num_gpu", "gpu_milli"])
        writer.writerows([f"p{n}", 1000, gpus, size] for n, (size, gpus) in enumerate(pods))
    with (folder / fragmentation.NODES).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sn", "gpu", "model"])
        writer.writerows([f"n{n}", count, "G2"] for n, count in enumerate(nodes))


@pytest.fixture
def sample(tmp_path: Path) -> fragmentation.Trace:
    """Return an invented trace with the proportions of the published trace."""
    draw = random.Random(7)
    pods = [draw.choice(SIZES) for _ in range(400)]
    write(tmp_path, [*pods, (0, 0)], [2, 2, 4, 8, 8, 8, 8, 0])
    return fragmentation.read(tmp_path)


def published() -> fragmentation.Trace:
    folder = os.environ.get("GPUSHARE_TEST_TRACES", "")
    if not folder:
        pytest.skip("GPUSHARE_TEST_TRACES names no folder with the openb trace")
    return fragmentation.read(Path(folder))


def mean(trace: fragmentation.Trace, strategy: str, figure: str, seeds: range) -> float:
    figures = [fragmentation.measure(trace, strategy, seed) for seed in seeds]
    return sum(float(one[figure]) for one in figures) / len(figures)


def test_trace_omits_pods_and_nodes_without_devices(sample: fragmentation.Trace) -> None:
    assert len(sample.pods) == 400
    assert sum(sample.nodes) == 40
    assert len(sample.nodes) == 7


def test_packing_leaves_less_unusable_than_spreading(sample: fragmentation.Trace) -> None:
    seeds = range(5)
    assert mean(sample, "pack", "allocated", seeds) > mean(sample, "spread", "allocated", seeds) + 0.02


def test_gradient_descent_is_no_worse_than_packing(sample: fragmentation.Trace) -> None:
    seeds = range(20)
    assert mean(sample, "fgd", "allocated", seeds) >= mean(sample, "pack", "allocated", seeds) - 0.005
    assert mean(sample, "fgd", "fragmented", seeds) <= mean(sample, "pack", "fragmented", seeds) + 0.005


@pytest.mark.slow
def test_gradient_descent_is_no_worse_on_the_published_trace() -> None:
    trace = published()
    part = trace._replace(nodes=random.Random(1).sample(trace.nodes, 200))
    seeds = range(3)
    assert mean(part, "fgd", "fragmented", seeds) <= mean(part, "pack", "fragmented", seeds) + 1e-3
    assert mean(part, "fgd", "allocated", seeds) >= mean(part, "pack", "allocated", seeds) - 1e-3


def test_the_same_seed_gives_the_same_figures(sample: fragmentation.Trace) -> None:
    first, second = (fragmentation.measure(sample, "fgd", 3) for _ in range(2))
    del first["microseconds"], second["microseconds"]
    assert first == second


@pytest.mark.parametrize(
    ("pods", "error"),
    [([(1001, 1)], "gpu_milli=1001 is out of range: allowed are 0 to 1000"), ([(-1, 1)], "gpu_milli='-1' is not a")],
)
def test_invalid_value_in_a_trace_is_refused(tmp_path: Path, pods: list[tuple[int, int]], error: str) -> None:
    write(tmp_path, pods, [1])
    with pytest.raises(ValueError, match=error):
        fragmentation.read(tmp_path)


def test_simulator_accepts_placement_strategies() -> None:
    assert parse_variant("fcfs:placement=fgd").settings.placement.strategy == "fgd"
    with pytest.raises(ValueError, match="placement='best' is unknown: allowed are spread, pack, fgd"):
        parse_variant("fcfs", {"placement": "best"})


def test_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [], [1])
    (tmp_path / fragmentation.PODS).write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"openb_pod_list_default.csv, line 1: columns num_gpu, gpu_milli are missing"):
        fragmentation.read(tmp_path)


def test_row_with_too_few_columns_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [(500, 1)], [1])
    (tmp_path / fragmentation.PODS).write_text("num_gpu,gpu_milli\n1\n")
    with pytest.raises(ValueError, match="a row has no value for gpu_milli"):
        fragmentation.read(tmp_path)


def test_malformed_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, [(500, 1)], [1])
    (tmp_path / fragmentation.PODS).write_text("num_gpu,gpu_milli\n1," + "5" * csv.field_size_limit() + "5\n")
    with pytest.raises(ValueError, match=r"openb_pod_list_default.csv, line 2: field larger than field limit"):
        fragmentation.read(tmp_path)


@pytest.mark.parametrize(
    ("pods", "nodes", "error"),
    [
        ([(0, 0), (500, 0)], [1], "openb_pod_list_default.csv has no pod that asks for a device"),
        ([(500, 1)], [0], "openb_node_list_gpu_node.csv has no node with a device"),
    ],
)
def test_trace_without_devices_is_refused(
    tmp_path: Path, pods: list[tuple[int, int]], nodes: list[int], error: str
) -> None:
    write(tmp_path, pods, nodes)
    with pytest.raises(ValueError, match=error):
        fragmentation.read(tmp_path)
