"""`jupyter gpushare run`: what it asks for, and when its client is over."""

from __future__ import annotations

import os
import signal

from .host import Host, eventually


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
