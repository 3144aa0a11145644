"""Tests of the launcher and of `jupyter gpushare run`, which prepare an environment and execute a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import launcher
from jupyter_gpushare.launch import kernel_env

SHOW = "import json, os; print(json.dumps([os.getpid(), dict(os.environ)]), flush=True)"
LAUNCHER = ["-m", "jupyter_gpushare.launcher"]
RUN = ["-m", "jupyter_gpushare", "run"]


def run(words: list[str], env: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        **options,
    )


@pytest.mark.parametrize(
    "words", [[*LAUNCHER, "-c"], [*LAUNCHER, "--", sys.executable, "-c"], [*RUN, "--", sys.executable, "-c"]]
)
def test_the_command_has_the_same_process_id_and_is_a_client(coordinator: Any, words: list[str]) -> None:
    code = f"{SHOW}; input()"
    process = subprocess.Popen([sys.executable, *words, code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdin is not None and process.stdout is not None
        pid, env = json.loads(process.stdout.readline())
        assert pid == process.pid
        assert env["GPUSHARE_CLIENT"] in coordinator.clients()
        assert env["LD_PRELOAD"].startswith(str(kernel_env.SHIM))
        process.stdin.write("\n")


def test_the_launcher_changes_no_prepared_environment(coordinator: Any) -> None:
    prepared = {**os.environ, "GPUSHARE_PREPARED": "k1", "GPUSHARE_CLIENT": "k1"}
    done = run([*LAUNCHER, "-c", SHOW], prepared)
    assert json.loads(done.stdout)[1] == prepared
    assert coordinator.clients() == {}


def test_the_launcher_imports_little_for_a_prepared_kernel() -> None:
    done = run(["-X", "importtime", *LAUNCHER, "--", "true"], {"GPUSHARE_PREPARED": "k1"})
    imported = {line.rsplit("|", 1)[-1].strip() for line in done.stderr.splitlines()}
    assert "jupyter_gpushare" in imported
    assert not imported & {"asyncio", "msgspec", "json", "socket", "subprocess", "jupyter_client", "traitlets"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--gpus", "x", "--", "true"], "--gpus 'x' is not a whole number from 1 to 64"),
        (["--gpus"], "needs a value"),
        (["--gpu", "1", "--", "true"], "unknown option '--gpu'"),
        (["--memory-mode", "tape", "--", "true"], "'tape' is unknown: allowed are unified, swap, plain"),
    ],
)
def test_launcher_usage_errors_are_refused(words: list[str], complaint: str) -> None:
    done = run([*LAUNCHER, *words])
    assert done.returncode == 2 and complaint in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("start", [("-c", launcher.START), LAUNCHER], ids=["this version", "an earlier version"])
def test_provisioner_replaces_the_launcher_by_its_command(start: Sequence[str]) -> None:
    launched = ["/env/python", *start, "--quota", "share=0.5"]
    assert launcher.strip_wrapper([*launched, "-m", "ipykernel_launcher"]) == [
        "/env/python",
        "-m",
        "ipykernel_launcher",
    ]
    assert launcher.strip_wrapper([*launched, "--", "R", "-e", "x"]) == ["R", "-e", "x"]
    assert launcher.strip_wrapper([*launched, "--", "python3", "x.py"]) == ["/env/python", "x.py"]
    assert launcher.strip_wrapper(["/env/python", "-m", "ipykernel_launcher"]) == [
        "/env/python",
        "-m",
        "ipykernel_launcher",
    ]


@pytest.mark.parametrize("status", [0, 3, 255])
def test_exit_status_is_the_status_of_the_command(coordinator: Any, status: int) -> None:
    assert run([*RUN, "--", "sh", "-c", f"exit {status}"]).returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_command_receives_the_signals(coordinator: Any, number: int) -> None:
    command = [sys.executable, *RUN, "--", "sh", "-c", "echo ready; exec sleep 600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait(60) == -number


def test_a_broken_pipe_ends_the_command(coordinator: Any) -> None:
    ignored = run([*RUN, "--", "grep", "SigIgn", "/proc/self/status"]).stdout
    assert int(ignored.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


def test_options_reach_the_coordinator(coordinator: Any, wait_until: Any) -> None:
    options = ["--share", "0.25", "--limit", "50%", "--memory", "1GiB", "--label", "nightly"]
    command = [sys.executable, *RUN, *options, "--", "sh", "-c", "echo $GPUSHARE_QUOTA; read x"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "share=0.25 limit=50% memory=1GiB\n"
        (client,) = coordinator.clients().values()
        process.stdin.write("\n")
    assert client["label"] == "nightly" and client["id"].startswith("run-")
    assert {key: client["quota"][key] for key in ("share", "limit", "memory")} == {
        "share": 0.25,
        "limit": 0.5,
        "memory": 1 << 30,
    }


@pytest.mark.parametrize("words", [[*RUN], [*LAUNCHER]])
def test_environment_quota_applies_without_an_option(coordinator: Any, words: list[str]) -> None:
    own = {"GPUSHARE_QUOTA": "share=0.25 memory=1GiB service=offline"}
    options = ["--memory", "2GiB"] if words == RUN else ["--quota", "memory=2GiB"]
    command = [sys.executable, *words, *options, "--", "sh", "-c", "echo $GPUSHARE_QUOTA; read x"]
    env = {**os.environ, **own}
    with subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "share=0.25 memory=2GiB service=offline\n"
        (client,) = coordinator.clients().values()
        process.stdin.write("\n")
    quota = client["quota"]
    assert (quota["share"], quota["memory"], quota["service"]) == (0.25, 2 << 30, "offline")


def test_invalid_environment_quota_is_refused(coordinator: Any) -> None:
    for text, complaint in (("memory", "GPUSHARE_QUOTA='memory'"), ("share=7", "from 0 to 1")):
        done = run([*RUN, "--", "true"], {"GPUSHARE_QUOTA": text})
        assert done.returncode == 2 and complaint in done.stderr
        done = run([*LAUNCHER, "--", "sh", "-c", "echo $GPUSHARE_NOTE"], {"GPUSHARE_QUOTA": text})
        assert (done.returncode, done.stdout[:8]) == (0, "refused:"), "the kernel must start with a note"


def test_coordinator_sets_the_memory_mode_without_an_option(coordinator: Any) -> None:
    show = ["--", "sh", "-c", "echo $GPUSHARE_MEMORY_MODE"]
    own = {"GPUSHARE_MEMORY_MODE": "unified"}
    coordinator.set(memory_mode="plain")
    assert run([*RUN, *show]).stdout == "plain\n"
    assert run([*RUN, *show], own).stdout == "unified\n"
    assert run([*RUN, "--memory-mode", "plain", *show], own).stdout == "plain\n"


def test_options_after_the_command_belong_to_the_command(coordinator: Any) -> None:
    assert run([*RUN, "--", "echo", "--share", "7", "--", "-x"]).stdout == "--share 7 -- -x\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--share", "0.5", "--limit", "0.2", "--", "true"], "above limit"),
        (["--gpus", "65", "--", "true"], "1 to 64"),
        (["--memory-mode", "tape", "--", "true"], "'tape' is unknown: allowed are unified, swap, plain"),
        ([], "command is missing"),
        (["--shares", "1", "--", "true"], "--shares"),
    ],
)
def test_invalid_values_are_refused(no_coordinator: str, words: list[str], complaint: str) -> None:
    done = run([*RUN, *words])
    assert done.returncode == 2 and complaint in done.stderr and "Traceback" not in done.stderr


def test_commands_that_cannot_be_executed_have_the_status_of_a_shell(coordinator: Any, tmp_path: Path) -> None:
    missing = run([*RUN, "--", "no-such-command"])
    assert missing.returncode == 127 and "no-such-command" in missing.stderr
    (tmp_path / "plain").touch()
    assert run([*RUN, "--", str(tmp_path / "plain")]).returncode == 126


def test_command_runs_unshared_with_a_warning_without_a_coordinator(no_coordinator: str) -> None:
    done = run([*RUN, "--", "sh", "-c", "echo works; exit 5"])
    assert (done.returncode, done.stdout) == (5, "works\n")
    assert done.stderr.startswith("gpushare: ") and no_coordinator in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_default_labels() -> None:
    assert launcher.default_label(["python", "-u", "work/train.py", "--lr", "1"]) == "train.py"
    assert launcher.default_label(["/usr/bin/python3", "-m", "torch.run", "x.py"]) == "torch.run"
    assert launcher.default_label(["python", "-W", "error", "-Xdev", "train.py"]) == "train.py"
    assert launcher.default_label(["python3", "-uc", "import train\ntrain.run()"]) == "python3 -c"
    assert launcher.default_label(["python", "-"]) == launcher.default_label(["python"]) == "python"
    assert launcher.default_label(["/usr/bin/R", "--slave"]) == "R"
