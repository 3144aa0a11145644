"""Test that a cgroup with a small memory limit bounds the eviction of a client, and that nothing is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from jupyter_gpushare.wire import address

from ..support.memory_cgroup import MakeCgroup, TestCgroup
from ..support.polling import wait_until
from .system_host import MIB, WAIT, GpuProgram, SystemHost

MOVE_SECONDS = 100.0  # on a busy machine, for a call that moves up to 2.4 GiB and waits for samples of the limit
PIECE_MIB = {"swap": 1 << 20, "unified": 100}  # at most; mode unified leaves larger ones than 1 GiB to the driver
WORK = "check(cuda.spin(1) or cuda.cuCtxSynchronize())"

# The programs never write to their memory. In mode swap the simulated driver keeps none of it on the host, except while
# it leaves the device. An eviction reads at most 256 MiB before it releases them, which is below the reserve of the
# coordinator. In mode unified the pages exist, and a page that has left the device once keeps its host memory.
COORDINATOR = """
import sys
from jupyter_gpushare.cli import main
from jupyter_gpushare.coordinator.monitoring import host_backing
host_backing.SIMULATED_MEMORY_IS_ON_HOST = False
sys.exit(main())
"""


@pytest.fixture
def host(host: SystemHost) -> Iterator[SystemHost]:
    """Return a host with a coordinator that takes the device for one with memory of its own."""
    host.memory = 1536 * MIB
    argv = [sys.executable, "-c", COORDINATOR, "coordinator", "--simulate", "--socket", host.socket]
    with (host.folder / "coordinator.log").open("ab") as log:
        coordinator = subprocess.Popen([*argv, "--time-quantum", "1"], env=host.environment(), stdout=log, stderr=log)
    try:
        wait_until(lambda: address.is_accepting(host.socket))
        yield host
    finally:
        coordinator.terminate()
        coordinator.wait(WAIT)


@pytest.fixture
def cgroup(make_cgroup: MakeCgroup, host: SystemHost) -> TestCgroup:
    """Return a cgroup whose processes end with the host."""
    return make_cgroup(4096 * MIB)


def start(host: SystemHost, mode: str, name: str, mib: int, cgroup: TestCgroup | None = None) -> GpuProgram:
    """Start a program that allocates memory, and that has all of it on the device after its first turn."""
    program = host.program(name, GPUSHARE_MEMORY_MODE=mode, GPUSHARE_PINNED="0")
    if cgroup:
        (cgroup.folder / "cgroup.procs").write_text(str(program.pid))
    piece = min(mib, PIECE_MIB[mode])
    program.run(f"[check(cuda.alloc({piece} << 20)[0]) for _ in range({mib // piece})]")
    return program


@pytest.mark.parametrize("mode", ["swap", "unified"])
def test_small_memory_limit_keeps_memory_on_the_device(host: SystemHost, cgroup: TestCgroup, mode: str) -> None:
    limited = start(host, mode, "limited", 1400, cgroup)
    limited.run(WORK, MOVE_SECONDS)
    small, large = start(host, mode, "small", 600), start(host, mode, "large", 1300)
    cgroup.set_limit(1400 * MIB)
    wait_until(lambda: host.clients()["limited"]["unbacked"], what="a sample of the new limit")

    small.run(WORK, MOVE_SECONDS)
    evicted = host.page(limited)["evicted_bytes"]
    assert 464 * MIB <= evicted < 1164 * MIB
    assert mode == "swap" or cgroup.used_bytes() >= evicted
    large.start(WORK)
    reason = wait_until(lambda: host.clients()["large"]["wait_reason"])
    assert " of limited cannot leave the GPU, because the memory limit of its container or service is reached" in reason
    assert host.clients()["large"]["state_text"].startswith("waiting for room")
    findings = json.loads(host.command("doctor", "--json").stdout)
    (finding,) = [finding for finding in findings if "cannot leave the GPU" in finding["message"]]
    assert "of limited" in finding["message"] and cgroup.folder.name in finding["message"]
    small.run(WORK, MOVE_SECONDS)
    limited.run(WORK, MOVE_SECONDS)
    assert host.clients()["large"]["phase"] == "waiting"

    cgroup.set_limit(4096 * MIB)
    large.result(MOVE_SECONDS)
    assert host.page(limited)["evicted_bytes"] >= 1164 * MIB
    limited.run(WORK, MOVE_SECONDS)
    assert cgroup.oom_kills() == 0
    assert [program.process.poll() for program in (limited, small, large)] == [None] * 3
