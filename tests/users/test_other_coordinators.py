"""Tests of hosts without an admin: each user has a coordinator, and users share a device by its lock file only."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import address, messages
from jupyter_gpushare.wire.client import Client

from ..driver_facts.harness import PTX
from ..native import simlog
from ..support import tier
from ..system.system_host import (
    FAILING_COORDINATOR_ARGV,
    GpuProgram,
    start_all_busy,
    stop_all,
    turn_intervals,
    wait_until,
)
from .conftest import ROOT, Host

QUANTUM = 0.2
MANY = 12

Start = Callable[[str, str], GpuProgram]


def simulated(host: Host, user: str) -> dict[str, str]:
    """Return the environment of a user's programs with one simulated device for all users."""
    return {
        **host.environment(user),
        "GPUSHARE_SIMULATE": "1",
        "GPUSHARE_SIM_STATE": "/dev/shm/simulated-devices",
        "GPUSHARE_SIM_SHARED": "1",
        "GPUSHARE_SIM_MEMORY": str(256 << 20),
        "GPUSHARE_SIM_LOG": str(host.folder / "simlog"),
        "GPUSHARE_SOCKET": socket_of(host, user),
        "TEST_PTX": str(PTX),
    }


def socket_of(host: Host, user: str) -> str:
    return str(host.machine.users[user].home / "run/c.sock")


def status(host: Host, user: str) -> dict[str, object]:
    with Client(socket_of(host, user), timeout=60) as client:
        found: dict[str, object] = client.request(messages.Status())
        return found


@pytest.fixture
def start(bare_host: Host) -> Iterator[Start]:
    """Yield a function that starts a program of a user's client, and the user's coordinator if necessary."""
    (bare_host.folder / "simlog").mkdir(mode=0o777)
    (bare_host.folder / "simlog").chmod(0o777)
    programs: list[GpuProgram] = []

    def begin(user: str, client: str) -> GpuProgram:
        socket = socket_of(bare_host, user)
        if not address.is_accepting(socket):
            options = ("--socket", socket, "--simulate", "--exit-after", "0", "--time-quantum", str(QUANTUM))
            argv = (sys.executable, "-m", "jupyter_gpushare", "coordinator", *options)
            with (bare_host.folder / "log").open("a") as log:
                bare_host.start(*argv, user=user, env=simulated(bare_host, user), stdout=log, stderr=log)
            wait_until(lambda: address.is_accepting(socket))
        env = kernel_env.build_environment(
            simulated(bare_host, user),
            client=client,
            token="t",
            label=client,
            quota="",
            socket=socket,
            simulate=True,
            coordinator_argv=FAILING_COORDINATOR_ARGV,
            python=False,
        )
        command = (sys.executable, str(ROOT / "tests/system/gpu_program.py"))
        program = GpuProgram(bare_host.machine.argv(*command, user=user), env)
        programs.append(program)
        program.run("cuda = Cuda()")
        return program

    yield begin
    for program in programs:
        program.end()


def executions(host: Host, programs: list[GpuProgram]) -> list[simlog.Execution]:
    found = [simlog.Log(Path(host.folder / "simlog" / f"{program.pid}.simlog")).read() for program in programs]
    return sorted(execution for one in found for execution in one)


@pytest.mark.parametrize("adas", [*tier.nightly([1]), 2])
def test_busy_programs_take_turns(bare_host: Host, start: Start, adas: int) -> None:
    """Each coordinator has the clients of its user only, and its clients do not keep the device for ever."""
    programs = {"ada": [start("ada", f"ada-{number}") for number in range(adas)], "bob": [start("bob", "bob-0")]}
    start_all_busy(*programs["ada"], *programs["bob"], launch=0.002)

    def found() -> list[list[simlog.Execution]]:
        return [executions(bare_host, mine) for mine in programs.values()]

    wait_until(lambda: len(turn_intervals(*found())) >= MANY)
    output = bare_host.command("ada", "doctor", "--socket", socket_of(bare_host, "ada")).stdout
    stop_all(*programs["ada"], *programs["bob"])
    worked = found()
    assert simlog.overlap_seconds(worked) == 0
    # The last turns end with the programs.
    lengths = [(end - begin) / 1e9 for _, begin, end in turn_intervals(*worked)[:MANY]]
    assert QUANTUM / 2 < statistics.median(lengths) < 2 * QUANTUM, lengths
    for mine in programs["ada"]:
        assert executions(bare_host, [mine])
    assert re.search("coordinators of [2-9] users run on this host", output), output
    # bob's program shares the device by another coordinator.
    assert "programs use the GPU without sharing it" not in output, output
    assert "coordinator --system" in output


def test_uncontended_program_keeps_the_device(bare_host: Host, start: Start) -> None:
    """The program of the other user is idle."""
    ada = start("ada", "ada-0")
    start("bob", "bob-0")
    ada.busy(launch=0.002)
    wait_until(lambda: (found := executions(bare_host, [ada])) and found[-1].end_ns - found[0].begin_ns > 1e9)
    ada.stop()
    (client,) = status(bare_host, "ada")["clients"]  # type: ignore[misc]
    assert client["turn_count"] <= 2  # the first launch has a turn of its own if bob's program had the device
