"""Test of the parts of users with programs whose memory must move, under the shipped settings of a host coordinator."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.launch import kernel_env

from ..driver_facts.harness import PTX
from ..native import simlog
from ..system.system_host import FAILING_COORDINATOR_ARGV, MIB, MOST, GpuProgram, stop_all
from .conftest import ROOT, SOCKET, Host

DEVICE_BYTES = 256 * MIB
SIZE = int(MOST * DEVICE_BYTES)  # of each program, so that no two of them fit together
FILL = f"check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({SIZE})) or cuda.cuCtxSynchronize())"
LAUNCH = 0.002  # seconds
FIRST_TURN_SECONDS = 60.0
MEASURED_SECONDS = 120.0


@pytest.fixture
def simulated_host(bare_host: Host) -> Host:
    """Return a host with a simulated device for all users, and its coordinator."""
    log = bare_host.folder / "simlog"
    log.mkdir(mode=0o777)
    log.chmod(0o777)
    bare_host.coordinator("--simulate", environment=simulation(bare_host))
    return bare_host


def simulation(host: Host) -> dict[str, str]:
    return {
        "GPUSHARE_SIMULATE": "1",
        "GPUSHARE_SIM_STATE": "/dev/shm/simulated-devices",
        "GPUSHARE_SIM_SHARED": "1",
        "GPUSHARE_SIM_MEMORY": str(DEVICE_BYTES),
        "GPUSHARE_SIM_LOG": str(host.folder / "simlog"),
        "TEST_PTX": str(PTX),
    }


@pytest.fixture
def programs(simulated_host: Host) -> Iterator[dict[str, list[GpuProgram]]]:
    """Yield five programs of ada and one of bob, with their memory."""
    made: dict[str, list[GpuProgram]] = {"ada": [], "bob": []}
    for user, number in (*(("ada", number) for number in range(5)), ("bob", 0)):
        env = kernel_env.build_environment(
            simulated_host.environment(user) | simulation(simulated_host),
            client=f"{user}-{number}",
            token="t",
            label=f"{user}-{number}",
            quota="",
            socket=SOCKET,
            simulate=True,
            coordinator_argv=FAILING_COORDINATOR_ARGV,
            python=False,
        )
        command = (sys.executable, str(ROOT / "tests/system/gpu_program.py"))
        program = GpuProgram(simulated_host.machine.argv(*command, user=user), env)
        made[user].append(program)
        program.run("cuda = Cuda()")
        program.run(f"array = cuda.alloc({SIZE})[1]")
        program.run(FILL)
    yield made
    for program in (*made["ada"], *made["bob"]):
        program.end()


def seconds_worked(host: Host, programs: list[GpuProgram], since_ns: int) -> float:
    """Return the device time of the programs' launches since that time."""
    logs = [simlog.Log(Path(host.folder / "simlog" / f"{program.pid}.simlog")) for program in programs]
    found = [one for log in logs for one in log.read() if one.kind == "launch" and one.begin_ns >= since_ns]
    return sum(one.end_ns - one.begin_ns for one in found) / 1e9


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_five_endless_programs_of_one_user_get_as_much_as_one_of_another(
    simulated_host: Host, programs: dict[str, list[GpuProgram]]
) -> None:
    everyone = [*programs["ada"], *programs["bob"]]
    for program in everyone:
        program.start_busy(launch=LAUNCH)
    for program in everyone:
        program.result(FIRST_TURN_SECONDS)
    since = time.monotonic_ns()
    time.sleep(MEASURED_SECONDS)
    worked = {user: seconds_worked(simulated_host, mine, since) for user, mine in programs.items()}
    assert all(seconds_worked(simulated_host, [program], since) > 0 for program in everyone)
    assert worked["bob"] / sum(worked.values()) == pytest.approx(0.5, abs=0.05), worked
    stop_all(*everyone)
