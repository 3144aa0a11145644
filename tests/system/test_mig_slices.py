"""Test of MIG slices on a host: programs get a slice each, and the views show the slices of a GPU."""

from __future__ import annotations

import pytest

from ..driver_facts.mig import CONFIG
from .system_host import SystemHost

MIB = 1 << 20


@pytest.fixture
def mig_host(host: SystemHost) -> SystemHost:
    """Return a host with a whole device, and a device with slices of 128 and 256 MiB."""
    host.config = CONFIG
    host.start_coordinator()
    return host


def test_a_program_gets_one_slice_and_uses_it(mig_host: SystemHost) -> None:
    whole, small, large = mig_host.status()["devices"]
    gpu = small["parent"]
    assert (whole["parent"], large["parent"]) == (None, gpu) and gpu.startswith("GPU-")
    assert [one["memory_total"] // MIB for one in (small, large)] == [128, 256]
    program = mig_host.run("--place", f"device={large['uuid']}")
    program.run("cuda = Cuda()")
    assert program.run("os.environ['CUDA_VISIBLE_DEVICES']") == large["uuid"]
    assert program.run("cuda.info()")[1] == 256 * MIB
    program.busy()
    (client,) = mig_host.clients().values()
    assert client["devices"] == [large["uuid"]]
    (grant,) = next(one for one in mig_host.status()["devices"] if one["uuid"] == large["uuid"])["grants"]
    assert grant["client"] == client["id"]
    program.stop()


def test_a_gang_gets_no_slice(mig_host: SystemHost) -> None:
    refused = mig_host.command("run", "--gpus", "2", "--", "true")
    assert refused.returncode != 0
    assert "gpus=2 is more than there are here without MIG slices: 1 (Simulated GPU)" in refused.stderr


def test_the_views_show_the_gpu_of_slices(mig_host: SystemHost) -> None:
    small = mig_host.status()["devices"][1]
    shown = mig_host.command("status").stdout.replace("\n", "")
    assert shown.count("MIG slice of") == 2
    assert "2 MIG slices of 1 GPU" in mig_host.command("doctor").stdout
    out = mig_host.command("device", small["parent"], "--fail", "fan")
    assert out.returncode == 0, out.stderr
    assert [one["failed"] for one in mig_host.status()["devices"]] == [None, "fan", "fan"]
    assert mig_host.command("device", small["uuid"], "--recover").returncode == 0
    assert [one["failed"] for one in mig_host.status()["devices"]] == [None, None, "fan"]
