"""Tests of the findings and remedies of `jupyter gpushare doctor`."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.cli.doctor.clients import bypassing_libraries, pids_from_nvml
from jupyter_gpushare.cli.doctor.main import _driver, _mode_swap, _shim
from jupyter_gpushare.cli.doctor.mps import compute_mode
from jupyter_gpushare.launch import kernel_env

from ..coordinator.fake_nvml import FakeNvml
from ..support.command import run_command
from ..support.mps_daemon import MpsDaemon


def doctor(*words: str, **changes: str) -> tuple[int, list[dict[str, Any]]]:
    done = run_command("doctor", "--json", *words, **changes)
    return done.returncode, json.loads(done.stdout)


def about(findings: list[dict[str, Any]], subject: str) -> dict[str, Any]:
    return next(finding for finding in findings if finding["subject"] == subject)


def test_doctor_reports_no_errors_on_a_simulated_host(own_host: Path) -> None:
    code, findings = doctor("--simulate")
    assert code == 0, findings
    assert not [finding for finding in findings if finding["level"] == "error"]
    assert "simulated driver" in about(findings, "driver")["message"]
    assert "unified memory may exceed" in about(findings, "device 0")["message"]
    assert "can be preloaded" in about(findings, "shim")["message"]
    assert "python3-gpushare" in about(findings, "kernels")["message"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("c.GpuShare.policy = 'lifo'", "c.GpuShare.policy='lifo' is unknown"),
        ("c.GpuShare.tenants = {'a': 3}", "tenant 'a': 3 is not a dictionary"),
        ("c.GpuShare.policy = lifo", "NameError: name 'lifo' is not defined"),
        ("c.GpuShare.polcy = 'fair'", "unknown setting c.GpuShare.polcy; did you mean c.GpuShare.policy?"),
    ],
)
def test_an_error_in_a_file_is_named_before_any_coordinator_runs(
    own_host: Path, tmp_path: Path, line: str, words: str
) -> None:
    file = tmp_path / "jupyter_gpushare_config.py"
    file.write_text(f"{line}\n")
    _, findings = doctor("--simulate", JUPYTER_CONFIG_PATH=str(tmp_path))
    found = about(findings, "configuration")
    assert found["level"] == "warning"
    assert found["message"].startswith(f"{file}, line 1: ") and words in found["message"]


def test_a_device_that_cannot_page_unified_memory(own_host: Path, tmp_path: Path) -> None:
    (tmp_path / "devices.conf").write_text("[device]\nconcurrent_managed_access = 0\n")
    _, findings = doctor("--simulate", GPUSHARE_SIM_CONFIG=str(tmp_path / "devices.conf"))
    found = about(findings, "device 0")
    assert found["level"] == "warning"
    assert "clients of memory mode unified use mode swap" in found["message"]


def test_a_driver_that_is_newer_than_known(own_host: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "libgpushare.so"
    shim.write_bytes(b"\0gpushare shim 0.1.0 page 1 wire 1 cuda 12090\0")
    monkeypatch.setattr(kernel_env, "SHIM", shim)
    _, newer, *_ = _driver(simulate=True)
    assert newer.level == "warning" and "CUDA 13.0 is newer than CUDA 12.9" in newer.message
    monkeypatch.undo()
    assert [finding.level for finding in _driver(simulate=True)] == ["ok", "ok", "ok"]


def test_a_control_daemon_of_mps_is_reported_with_what_it_does_not_isolate(own_host: Path) -> None:
    assert not [finding for finding in doctor("--simulate")[1] if finding["subject"] == "MPS"]
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        daemon = MpsDaemon(Path(folder))
        code, findings = doctor("--simulate", CUDA_MPS_PIPE_DIRECTORY=folder)
        daemon.stop()
    found = about(findings, "MPS")
    assert (code, found["level"]) == (0, "warning")
    assert f"pid {os.getpid()}, {folder}" in found["message"] and "a fatal fault of one client" in found["message"]
    assert "mps off" in found["remedy"]


class ModeDriver:
    """Driver with one device in this compute mode."""

    def __init__(self, mode: int) -> None:
        self.mode = mode

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.mode if attribute == 20 else 0
        return 0


@pytest.mark.parametrize(
    ("mode", "has_daemon", "words"),
    [(0, False, ""), (3, False, "EXCLUSIVE_PROCESS"), (3, True, ""), (2, False, "PROHIBITED"), (2, True, "PROHIBITED")],
)
def test_a_compute_mode_that_keeps_clients_from_the_device(mode: int, has_daemon: bool, words: str) -> None:
    with tempfile.TemporaryDirectory(prefix="mps") as folder:
        daemon = MpsDaemon(Path(folder)) if has_daemon else None
        found = list(compute_mode(ModeDriver(mode), 1, {"CUDA_MPS_PIPE_DIRECTORY": folder}))
        if daemon:
            daemon.stop()
    assert [finding.level for finding in found] == (["error"] if words else [])
    assert not words or (words in found[0].message and found[0].remedy == "nvidia-smi -i 1 -c DEFAULT")


class MappingDriver:
    """Driver with one device and these answers for the mapping of memory."""

    def __init__(self, attribute: int, status: int, granule: int) -> None:
        self.attribute, self.status, self.granule = attribute, status, granule

    def cuDeviceGet(self, device: Any, index: int) -> int:
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        value._obj.value = self.attribute
        return 0

    def cuMemGetAllocationGranularity(self, granule: Any, properties: Any, option: int) -> int:
        granule._obj.value = self.granule
        return self.status


def test_a_device_whose_memory_can_be_mapped_has_mode_swap(own_host: Path) -> None:
    _, findings = doctor("--simulate")
    assert any("mode swap is possible: memory is mapped in granules of 2 MiB" in each["message"] for each in findings)


def test_the_costs_of_mode_swap_are_measured_on_request(own_host: Path, tmp_path: Path) -> None:
    _, findings = doctor(
        "--simulate", "--costs", GPUSHARE_SIM_STATE=str(tmp_path / "devices"), GPUSHARE_SIM_DEVICES="2"
    )
    costs = [each["message"] for each in findings if "pinned copies of 64 MiB take" in each["message"]]
    assert len(costs) == 2
    for message in costs:
        for call in ("create", "map", "access", "unmap", "release"):
            assert re.search(rf"\b{call} \d+ µs", message), message
        assert re.search(r"[\d.]+ ms to the host and [\d.]+ ms to the device, simulated", message), message


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("GPUSHARE_SIM_MEMORY", "8", "a size of at least 4 MiB is needed"),
        ("GPUSHARE_SIM_DEVICES", "two", "a number from 0 to 16 is needed"),
    ],
)
def test_a_bad_value_for_the_simulated_driver_is_named(own_host: Path, name: str, value: str, allowed: str) -> None:
    _, findings = doctor("--simulate", **{name: value})
    (found,) = [each for each in findings if each["subject"] == "driver"]
    assert f"{name}={value}: {allowed}" in found["message"] and "GPUSHARE_SIM_" in found["remedy"]


def test_costs_that_cannot_be_measured_on_a_small_device(own_host: Path, tmp_path: Path) -> None:
    _, findings = doctor(
        "--simulate", "--costs", GPUSHARE_SIM_STATE=str(tmp_path / "devices"), GPUSHARE_SIM_MEMORY="48MiB"
    )
    (found,) = [each for each in findings if "could not be measured" in each["message"]]
    assert found["level"] == "warning" and "CUDA error 2" in found["message"]


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        (MappingDriver(0, 0, 2 << 20), "memory cannot be mapped"),
        (MappingDriver(1, 801, 2 << 20), "fails with CUDA error 801"),
        (MappingDriver(1, 0, 64 << 10), "granules of 64 KiB"),
    ],
)
def test_a_device_whose_memory_cannot_be_mapped_in_granules(driver: MappingDriver, reason: str) -> None:
    (finding,) = _mode_swap(driver, 0)
    assert finding.level == "warning" and reason in finding.message
    assert "use memory mode unified or plain" in finding.remedy


def test_clients_with_bypassing_libraries() -> None:
    loaded = {"pid": 7, "bypassing_libraries": ["OptiX", "NVDEC"]}
    client = {"id": "c1", "label": "render.ipynb", "processes": [loaded, {"pid": 8, "bypassing_libraries": []}]}
    other = {"id": "c2", "label": "", "processes": [{"pid": 9, "bypassing_libraries": []}]}
    (finding,) = bypassing_libraries({"clients": [client, other]})
    assert finding.message.startswith("render.ipynb has loaded NVDEC, OptiX, ")
    assert "jupyter gpushare hold c1" in finding.remedy


def test_a_missing_driver_is_an_error_with_a_remedy(own_host: Path) -> None:
    if any(
        Path(folder, "libcuda.so.1").exists()
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/nvidia/lib64")
    ):
        pytest.skip("this machine has a driver")
    code, findings = doctor()
    assert code == 1
    assert about(findings, "driver")["level"] == "error"
    assert "--simulate" in about(findings, "driver")["remedy"]


def test_a_runtime_directory_that_others_may_write_to_is_an_error(own_host: Path, tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    (runtime / "gpushare").mkdir(parents=True)
    (runtime / "gpushare").chmod(0o777)
    code, findings = doctor("--simulate", XDG_RUNTIME_DIR=str(runtime), GPUSHARE_SOCKET="")
    assert code == 1
    assert "no other user may write" in about(findings, "socket")["message"]
    assert str(runtime) in about(findings, "socket")["remedy"]


@pytest.mark.parametrize("socket", ["/proc/nowhere/c.sock", "{tmp}/file", "{tmp}/file/c.sock", f"/tmp/{'x' * 200}"])
def test_a_socket_that_cannot_be_made_is_an_error(own_host: Path, tmp_path: Path, socket: str) -> None:
    (tmp_path / "file").touch()
    socket = socket.format(tmp=tmp_path)
    code, findings = doctor("--simulate", GPUSHARE_SOCKET=socket)
    assert code == 1
    assert socket in about(findings, "socket")["message"] and "GPUSHARE_SOCKET" in about(findings, "socket")["remedy"]
    assert not [finding for finding in findings if finding["subject"] == "coordinator"]


def test_a_shim_below_a_path_with_spaces_can_be_preloaded(
    own_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = Path(kernel_env.__file__).parents[1]
    (tmp_path / "my clone").mkdir()
    (tmp_path / "my clone" / "jupyter_gpushare").symlink_to(package)
    shim = tmp_path / "my clone" / "jupyter_gpushare" / "native" / "libgpushare.so"
    monkeypatch.setattr(kernel_env, "SHIM", shim)
    (finding,) = _shim("")
    assert finding.level == "ok", finding
    assert str(shim) in finding.message


def test_processes_of_mig_slices_are_those_of_the_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only root may ask NVML for the processes of a GPU in MIG mode."""
    fake = FakeNvml("GPU-0", "GPU-1", slices={"GPU-1": ("MIG-a", None, "MIG-b")})
    fake.pids = {"GPU-0": (10,), "MIG-a": (11, 12), "MIG-b": (10,)}
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert pids_from_nvml() == {10, 11, 12}
