"""`jupyter gpushare doctor --pid`: a live program under the shim, with its coordinator and without one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from jupyter_gpushare.cli import inspection

from .host import MIB, Host, eventually


def doctor(host: Host, pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    return host.command("doctor", "--pid", str(pid), *words)


def inspected(host: Host, pid: int) -> dict[str, Any]:
    done = doctor(host, pid, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_program_with_its_coordinator(patient: Host) -> None:
    program = patient.program("one", "memory=64MiB")
    program.run("kept = cuda.alloc(40 << 20), cuda.alloc(1 << 20)")
    assert program.run("cuda.spin()") in (0, None)
    found = inspected(patient, program.pid)
    assert (found["client"], found["page"]["orders"]["memory_limit"]) == ("one", 64 * MIB)
    (line,) = found["details"]["ledger"]
    assert (line["kind"], line["number"], line["bytes"]) == ("redirected", 2, 41 * MIB)
    assert found["details"]["unhooked"] == []
    text = doctor(patient, program.pid).stdout
    for words in (f"process  {program.pid}", "client  one", "phase  in", "64 MiB to allocate", "redirected  2, 41 MiB"):
        assert words in text, text
    assert "no entry point that the shim does not know" in text


def test_a_stopped_program(patient: Host) -> None:
    program = patient.program("one")
    program.send(signal.SIGSTOP)
    found = inspected(patient, program.pid)
    assert found["details"] is None and found["page"]["report"]["allocated"] == 0
    assert "it is stopped" in doctor(patient, program.pid).stdout
    program.send(signal.SIGCONT)
    eventually(lambda: inspected(patient, program.pid)["details"], what="an answer after SIGCONT")


def test_a_program_without_a_coordinator(patient: Host) -> None:
    program = patient.program("one", "memory=64MiB")
    assert program.run("cuda.alloc(8 << 20)[0]") == 0
    patient.kill_coordinator()
    found = eventually(lambda: inspected(patient, program.pid))
    assert (found["coordinator"], found["details"]) == (None, None)
    assert found["page"]["report"]["allocated"] == 8 * MIB
    done = doctor(patient, program.pid)
    assert done.returncode == 0
    assert "No coordinator that answers here is in contact with it" in done.stdout
    assert "8 MiB allocated" in done.stdout


def test_what_cannot_be_looked_into(patient: Host) -> None:
    patient.program("one")
    assert patient.coordinator  # has the pages of others
    for pid, said in (
        (os.getpid(), f"process {os.getpid()} ({inspection.process_name(os.getpid())}) does not share the GPU"),
        (patient.coordinator.pid, "does not share the GPU"),
        (0x7FFFFFF0, "there is no process"),
        (-4, "there is no process"),
    ):
        done = doctor(patient, pid)
        assert (done.returncode, done.stdout) == (1, "") and said in done.stderr


def findings(host: Host, *words: str, **more: str) -> tuple[int, dict[str, dict[str, str]]]:
    argv = [sys.executable, "-m", "jupyter_gpushare", "doctor", "--json", *words]
    done = subprocess.run(argv, env=host.environment(**more), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, {finding["subject"]: finding for finding in json.loads(done.stdout)}


def test_the_simulated_driver_is_looked_at_where_a_coordinator_serves_it(patient: Host) -> None:
    """Without --simulate: there need be no real one."""
    status, found = findings(patient, GPUSHARE_SIMULATE="")
    assert (status, found["simulation"]["level"]) == (0, "warning"), found
    assert "SIMULATED" in found["simulation"]["message"]
    assert "simulated driver" in found["driver"]["message"]
    assert "simulation" not in findings(patient, "--simulate")[1]


def test_programs_that_do_not_share_are_found(patient: Host) -> None:
    shares, bare = patient.program("shares"), patient.program("bare", GPUSHARE_DISABLE="1")
    found = findings(patient)[1]["other programs"]
    assert found["level"] == "warning" and f"{bare.pid} (python" in found["message"]
    assert str(shares.pid) not in found["message"]
    bare.run("cuda.alloc(32 << 20)")

    def outside() -> list[dict[str, object]]:
        return list(patient.status()["devices"][0]["outside"])

    eventually(lambda: [one["pid"] for one in outside()] == [bare.pid] and int(str(outside()[0]["memory"])) >= 32 << 20)
    assert outside()[0]["user"]
    bare.end()
    eventually(lambda: outside() == [])
    assert findings(patient)[1]["other programs"]["level"] == "ok"
