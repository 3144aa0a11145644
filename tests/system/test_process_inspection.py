"""Tests of `jupyter gpushare doctor --pid` for a live program, with its coordinator and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from jupyter_gpushare.cli import inspection

from .system_host import MIB, SystemHost, wait_until


def doctor(host: SystemHost, pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    return host.command("doctor", "--pid", str(pid), *words)


def inspected(host: SystemHost, pid: int) -> dict[str, Any]:
    done = doctor(host, pid, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_inspection_shows_a_program_with_a_coordinator(default_settings_host: SystemHost) -> None:
    program = default_settings_host.program("one", "memory=64MiB")
    program.run("allocations = cuda.alloc(40 << 20), cuda.alloc(1 << 20)")
    assert program.run("cuda.spin()") in (0, None)
    found = wait_until(lambda: (one := inspected(default_settings_host, program.pid))["details"] and one)
    assert (found["client"], found["page"]["control"]["memory_limit"]) == ("one", 64 * MIB)
    (line,) = found["details"]["ledger"]
    assert (line["kind"], line["number"], line["bytes"]) == ("redirected", 2, 41 * MIB)
    assert found["details"]["unhooked"] == []
    text = wait_until(lambda: "redirected" in (one := doctor(default_settings_host, program.pid).stdout) and one)
    for words in (f"process  {program.pid}", "client  one", "phase  in", "64 MiB to allocate", "redirected  2, 41 MiB"):
        assert words in text, text
    assert "has looked up no function unknown to the shim" in text


def test_inspection_shows_a_stopped_program(default_settings_host: SystemHost) -> None:
    program = default_settings_host.program("one")
    program.send(signal.SIGSTOP)
    found = inspected(default_settings_host, program.pid)
    assert found["details"] is None and found["page"]["report"]["allocated"] == 0
    assert "or it is probably stopped" in doctor(default_settings_host, program.pid).stdout
    program.send(signal.SIGCONT)
    wait_until(lambda: inspected(default_settings_host, program.pid)["details"], what="an answer after SIGCONT")


def test_inspection_shows_a_program_without_a_coordinator(default_settings_host: SystemHost) -> None:
    program = default_settings_host.program("one", "memory=64MiB")
    assert program.run("cuda.alloc(8 << 20)[0]") == 0
    default_settings_host.kill_coordinator()
    found = wait_until(lambda: inspected(default_settings_host, program.pid))
    assert (found["coordinator"], found["details"]) == (None, None)
    assert found["page"]["report"]["allocated"] == 8 * MIB
    done = doctor(default_settings_host, program.pid)
    assert done.returncode == 0
    assert "The process has no connection to a coordinator that answers here" in done.stdout
    assert "8 MiB allocated" in done.stdout


def test_inspection_of_an_unshared_process_fails(default_settings_host: SystemHost) -> None:
    default_settings_host.program("one")
    assert default_settings_host.coordinator  # has mapped pages of other processes
    for pid, text in (
        (os.getpid(), f"process {os.getpid()} ({inspection.process_name(os.getpid())}) does not share the GPU"),
        (default_settings_host.coordinator.pid, "does not share the GPU"),
        (0x7FFFFFF0, "there is no process"),
        (-4, "there is no process"),
    ):
        done = doctor(default_settings_host, pid)
        assert (done.returncode, done.stdout) == (1, "") and text in done.stderr


def findings(host: SystemHost, *words: str, **more: str) -> tuple[int, dict[str, dict[str, str]]]:
    argv = [sys.executable, "-m", "jupyter_gpushare", "doctor", "--json", *words]
    done = subprocess.run(argv, env=host.environment(**more), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, {finding["subject"]: finding for finding in json.loads(done.stdout)}


def test_doctor_checks_the_simulated_driver_of_the_coordinator(default_settings_host: SystemHost) -> None:
    """`doctor` runs without --simulate here, and the machine need not have a real driver."""
    status, found = findings(default_settings_host, GPUSHARE_SIMULATE="")
    assert (status, found["simulation"]["level"]) == (0, "warning"), found
    assert "SIMULATED" in found["simulation"]["message"]
    assert "simulated driver" in found["driver"]["message"]
    assert "simulation" not in findings(default_settings_host, "--simulate")[1]


def test_programs_that_do_not_share_are_found(default_settings_host: SystemHost) -> None:
    shares, bare = default_settings_host.program("shares"), default_settings_host.program("bare", GPUSHARE_DISABLE="1")
    found = findings(default_settings_host)[1]["other programs"]
    assert found["level"] == "warning" and f"{bare.pid} (python" in found["message"]
    assert str(shares.pid) not in found["message"]
    bare.run("cuda.alloc(32 << 20)")

    def outside() -> list[dict[str, object]]:
        return list(default_settings_host.status()["devices"][0]["foreign_processes"])

    wait_until(lambda: [one["pid"] for one in outside()] == [bare.pid] and int(str(outside()[0]["memory"])) >= 32 << 20)
    assert outside()[0]["user"]
    bare.end()
    wait_until(lambda: outside() == [])
    assert findings(default_settings_host)[1]["other programs"]["level"] == "ok"
