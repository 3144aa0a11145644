"""`jupyter gpushare run`: what it asks for, and when its client is over."""

from __future__ import annotations

import os
import signal
import sys

from .host import Host, eventually

STARTED = {"GPUSHARE_COORDINATOR_ARGV": f'["{sys.executable}", "-m", "jupyter_gpushare", "coordinator", "--detach"]'}


def test_more_devices_than_there_are_is_an_error(patient: Host) -> None:
    done = patient.command("run", "--gpus", "5", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpus=5 is more than there are here: 1 (Simulated GPU)" in done.stderr
    assert patient.clients() == {}
    assert patient.command("run", "--gpus", "1", "--", "echo", "ran").stdout == "ran\n"


def test_its_client_ends_with_its_program(patient: Host) -> None:
    program = patient.run("--label", "job")
    program.run("cuda = Cuda(); import subprocess")
    (client,) = patient.clients().values()
    assert client["label"] == "job"
    program.run("cuda.spin()")
    child = program.run("subprocess.Popen(['sleep', '60'], stdin=-3, stdout=-3, stderr=-3).pid")
    program.end()
    eventually(lambda: patient.clients() == {}, seconds=5)
    os.kill(child, signal.SIGKILL)


def test_one_that_never_used_the_device_leaves_nothing_either(patient: Host) -> None:
    patient.command("run", "--", "true")
    eventually(lambda: patient.clients() == {}, seconds=5)


def test_the_coordinator_moves_nothing_of_an_old_ipython(patient: Host) -> None:
    assert not (patient.folder / "config" / "migrated").exists()


def test_a_coordinator_that_was_killed_comes_back_with_the_next_program(host: Host) -> None:
    """Nobody supervises the one that `run` has started: it is said what happens until then."""
    program = host.run("--label", "first", **STARTED)
    program.run("cuda = Cuda()")
    program.run("check(cuda.spin(1))")
    os.kill(host.status()["coordinator"]["pid"], signal.SIGKILL)
    for command in ("status", "config"):
        done = eventually(lambda command=command: (done := host.command(command)).returncode and done)  # type: ignore[misc]
        assert done.returncode == 1
        assert f"programs take turns by lock files meanwhile: {program.pid} (python" in done.stderr
        assert "'jupyter gpushare run' starts a coordinator, and they find it by themselves" in done.stderr
    assert f"{program.pid} (python" in host.command("doctor", "--simulate").stdout
    assert program.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0

    host.run("--label", "second", **STARTED).run("cuda = Cuda()")
    eventually(lambda: {client["label"] for client in host.clients().values()} == {"first", "second"})
    assert program.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0


def test_nobody_shares_without_a_coordinator(host: Host) -> None:
    done = host.command("status")
    assert done.returncode == 1
    assert "no program of yours shares a GPU there now" in done.stderr


def test_inside_of_a_client_it_is_a_part_of_it(patient: Host) -> None:
    """A limit is not escaped by accident."""
    patient.program("outer", "memory=64MiB")
    inner = patient.run(**patient.prepared("outer", "memory=64MiB"))
    inner.run("cuda = Cuda()")
    assert set(patient.clients()) == {"outer"}
    assert inner.run("cuda.info()")[1] == 64 << 20

    own = patient.run("--new", "--label", "own", "--memory", "32MiB", **patient.prepared("outer", "memory=64MiB"))
    own.run("cuda = Cuda()")
    assert {client["label"] for client in patient.clients().values()} == {"outer", "own"}
    assert own.run("cuda.info()")[1] == 32 << 20


def test_inside_of_a_client_options_of_its_own_are_refused(patient: Host) -> None:
    nested = patient.run("--memory", "1GiB", "--label", "own", **patient.prepared("outer"))
    assert nested.process.wait(20) == 2
    said = nested.end()
    assert "--memory, --label: this runs inside of 'outer'" in said and "--new" in said
