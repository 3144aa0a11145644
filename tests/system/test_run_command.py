"""Tests of `jupyter gpushare run`: its options, and the end of its client."""

from __future__ import annotations

import os
import signal
import sys

from .system_host import WAIT, SystemHost, wait_until

STARTED = {"GPUSHARE_COORDINATOR_ARGV": f'["{sys.executable}", "-m", "jupyter_gpushare", "coordinator", "--detach"]'}


def test_more_devices_than_there_are_is_an_error(default_settings_host: SystemHost) -> None:
    done = default_settings_host.command("run", "--gpus", "5", "--", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "gpus=5 is more than there are here: 1 (Simulated GPU)" in done.stderr
    assert default_settings_host.clients() == {}
    assert default_settings_host.command("run", "--gpus", "1", "--", "echo", "ran").stdout == "ran\n"


def test_run_client_ends_with_its_program(default_settings_host: SystemHost) -> None:
    program = default_settings_host.run("--label", "job")
    program.run("cuda = Cuda(); import subprocess")
    (client,) = default_settings_host.clients().values()
    assert client["label"] == "job"
    program.run("cuda.spin()")
    child = program.run("subprocess.Popen(['sleep', '600'], stdin=-3, stdout=-3, stderr=-3).pid")
    program.end()
    wait_until(lambda: default_settings_host.clients() == {})
    os.kill(child, signal.SIGKILL)


def test_run_without_gpu_use_leaves_no_client(default_settings_host: SystemHost) -> None:
    default_settings_host.command("run", "--", "true")
    wait_until(lambda: default_settings_host.clients() == {})


def test_the_coordinator_moves_nothing_of_an_old_ipython(default_settings_host: SystemHost) -> None:
    assert not (default_settings_host.folder / "config" / "migrated").exists()


def test_a_coordinator_that_was_killed_comes_back_with_the_next_program(host: SystemHost) -> None:
    """No process supervises a coordinator that `run` has started, so messages describe the turns until the next one."""
    program = host.run("--label", "first", **STARTED)
    program.run("cuda = Cuda()")
    program.run("check(cuda.spin(1))")
    wait_until(lambda: host.command("status").returncode == 0)  # `run` does not wait for a slow coordinator
    os.kill(host.status()["coordinator"]["pid"], signal.SIGKILL)
    for command in ("status", "config"):
        done = wait_until(lambda command=command: (done := host.command(command)).returncode and done)  # type: ignore[misc]
        assert done.returncode == 1
        assert f"these programs take turns by lock files meanwhile: {program.pid} (python" in done.stderr
        assert "'jupyter gpushare run' starts a coordinator, and the programs reconnect by themselves" in done.stderr
    assert f"{program.pid} (python" in host.command("doctor", "--simulate").stdout
    assert program.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0

    host.run("--label", "second", **STARTED).run("cuda = Cuda()")
    wait_until(lambda: {client["label"] for client in host.clients().values()} == {"first", "second"})
    assert program.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0


def test_run_without_a_coordinator_is_unshared(host: SystemHost) -> None:
    done = host.command("status")
    assert done.returncode == 1
    assert "none of your programs shares a GPU now" in done.stderr


def test_run_inside_a_client_belongs_to_that_client(default_settings_host: SystemHost) -> None:
    """A program does not escape its client's limit by accident."""
    default_settings_host.program("outer", "memory=64MiB")
    inner = default_settings_host.run(**default_settings_host.client_environment("outer", "memory=64MiB"))
    inner.run("cuda = Cuda()")
    assert set(default_settings_host.clients()) == {"outer"}
    assert inner.run("cuda.info()")[1] == 64 << 20

    own = default_settings_host.run(
        "--new",
        "--label",
        "own",
        "--memory",
        "32MiB",
        **default_settings_host.client_environment("outer", "memory=64MiB"),
    )
    own.run("cuda = Cuda()")
    assert {client["label"] for client in default_settings_host.clients().values()} == {"outer", "own"}
    assert own.run("cuda.info()")[1] == 32 << 20


def test_run_options_inside_a_client_are_refused(default_settings_host: SystemHost) -> None:
    nested = default_settings_host.run(
        "--memory", "1GiB", "--label", "own", **default_settings_host.client_environment("outer")
    )
    assert nested.process.wait(WAIT) == 2
    errors = nested.end()
    assert "--memory, --label: the program would run inside the client 'outer'" in errors and "--new" in errors
