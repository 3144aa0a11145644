"""Tests of MIG slices of simulated devices: their parameters, and the choice of the visible slice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ..driver_facts.harness import MIB, Cuda, environment, running_process
from .test_simcuda_files import describe
from .test_simcuda_multiprocess import read_line, send

TWO_SLICED = """
[device]
name = Whole
memory = 64 MiB
[device]
name = Cut
memory = 128 MiB
multiprocessors = 14
[slice]
memory = 32 MiB
multiprocessors = 2
[slice]
memory = 96 MiB
name = Cut MIG 3g
[device]
memory = 64 MiB
[slice]
memory = 64 MiB
"""


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "machine.conf").write_text(TWO_SLICED)
    return environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))


def described(variables: dict[str, str]) -> list[dict[str, Any]]:
    code, devices = describe(variables)
    assert code > 0 and isinstance(devices, list)
    return devices


def test_slices_follow_their_device(variables: dict[str, str]) -> None:
    devices = described(variables)
    assert [(one["name"], one["memory"] // MIB, one["parent"], one["slices"]) for one in devices] == [
        ("Whole", 64, -1, 0),
        ("Cut", 128, -1, 2),
        ("Cut MIG", 32, 1, 0),
        ("Cut MIG 3g", 96, 1, 0),
        ("Simulated GPU", 64, -1, 1),
        ("Simulated GPU MIG", 64, 4, 0),
    ]
    assert [one["uuid"][:4] for one in devices] == ["GPU-", "GPU-", "MIG-", "MIG-", "GPU-", "MIG-"]
    assert len({one["uuid"][4:] for one in devices}) == 6


def report(cuda: Cuda) -> None:
    count = int(cuda.cuDeviceGetCount())
    name = cuda.cuDeviceGetName(32, cuda.device).split(b"\0")[0].decode()
    bus = cuda.cuDeviceGetPCIBusId(16, cuda.device).split(b"\0")[0]
    assert int(cuda.cuDeviceGetByPCIBusId(bus)) == 0
    send(json.dumps([count, name, int(cuda.cuDeviceTotalMem(cuda.device)) // MIB, bus.decode()]))


def seen(variables: dict[str, str], choice: str | None) -> Any:
    more = {} if choice is None else {"CUDA_VISIBLE_DEVICES": choice}
    with running_process(report, variables | more) as process:
        line = read_line(process)
        return json.loads(line) if line else None


def test_a_process_sees_one_slice(variables: dict[str, str]) -> None:
    devices = described(variables)
    first, second = [1, "Cut MIG", 32, "0000:02:00.0"], [1, "Cut MIG 3g", 96, "0000:02:00.0"]
    other, whole = [1, "Simulated GPU MIG", 64, "0000:05:00.0"], [1, "Whole", 64, "0000:01:00.0"]
    gpu = devices[1]["uuid"]
    for choice, found in (
        (None, first),
        (devices[3]["uuid"], second),
        (f"{devices[3]['uuid']},{devices[2]['uuid']}", second),
        (gpu, first),
        (f"MIG-{gpu}/2/0", second),
        (f"MIG-{gpu}/3/0", None),
        (f"MIG-{gpu}/1/1", None),
        ("0", whole),
        ("1", first),
        ("2", other),
        ("0,2", other),
        ("3", None),
    ):
        assert seen(variables, choice) == found, choice


def fill_slice(cuda: Cuda) -> None:
    cuda.cuMemAlloc(8 * MIB)
    send("full")
    input()


def free(cuda: Cuda) -> None:
    send(str(cuda.cuMemGetInfo()[0] // MIB))


def test_memory_of_one_slice_is_no_memory_of_another(variables: dict[str, str]) -> None:
    devices = described(variables)
    with running_process(fill_slice, variables | {"CUDA_VISIBLE_DEVICES": devices[2]["uuid"]}) as process:
        assert read_line(process) == "full"
        for device, found in ((2, ""), (3, "80")):  # the other slice has no room for a second context
            with running_process(free, variables | {"CUDA_VISIBLE_DEVICES": devices[device]["uuid"]}) as other:
                assert read_line(other) == found, device


@pytest.mark.parametrize(("count", "entries"), [("1", 1), ("2", 4), ("5", 10)])
def test_a_number_of_devices_repeats_the_last_device_with_its_slices(
    variables: dict[str, str], count: str, entries: int
) -> None:
    devices = described(variables | {"GPUSHARE_SIM_DEVICES": count})
    assert len(devices) == entries and sum(one["parent"] < 0 for one in devices) == int(count)
    assert all(one["parent"] == one["index"] - 1 for one in devices[5:] if one["parent"] >= 0)


@pytest.mark.parametrize(
    ("text", "more", "message"),
    [
        ("[slice]\n", {}, "machine.conf:1: not understood"),
        ("[device]\nmemory = 64 MiB\n[slice]\n[slice]\n", {}, "the MIG slices of Simulated GPU have more memory"),
        ("[device]\n[slice]\n", {"GPUSHARE_SIM_MEMORY": "64MiB"}, "give each [slice] its memory"),
        ("[device]\n[slice]\n", {"GPUSHARE_SIM_DEVICES": "9"}, "at most 16 devices and MIG slices are allowed"),
    ],
)
def test_slices_that_are_refused(tmp_path: Path, text: str, more: dict[str, str], message: str) -> None:
    (tmp_path / "machine.conf").write_text(text)
    code, error = describe(environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"), **more))
    assert code == -1 and isinstance(error, dict) and message in error["error"]
