"""Builds of before and this one on one host: whoever coordinates, they take turns, and none is left behind."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

from ..system.host import Program, eventually, turns
from ..system.notebook import Notebook
from .builds import THIS, Build, MixedHost

pytestmark = pytest.mark.timeout(300)  # the first test of each build makes it

MANY = 12
MEMORY = 64 << 20
OUT_OF_MEMORY = 2
SHORT_TURNS = ("--time-quantum", "0.1")

whose = pytest.mark.parametrize("newer", [True, False], ids=["newer coordinator", "older coordinator"])


def turns_since(host: MixedHost, programs: list[Program], moment: int) -> int:
    """How many unbroken rows of work there were, each program having worked."""
    since = [[e for e in host.executions(program) if e.begin_ns > moment] for program in programs]
    return len(turns(*since)) if all(since) else 0


@whose
def test_programs_of_both_builds_take_turns(host: MixedHost, before: Build, newer: bool) -> None:
    host.start_with(THIS if newer else before, *SHORT_TURNS)
    programs = [host.program_of(before, "older", "share=0.25"), host.program_of(THIS, "newer", "share=0.25")]
    for program in programs:
        program.start_busy()
    eventually(lambda: turns_since(host, programs, 0) >= MANY)
    clients = host.clients()
    assert {name: client["quota"]["share"] for name, client in clients.items()} == {"older": 0.25, "newer": 0.25}
    assert all(client["quanta"] for client in clients.values())
    assert [process["mode"] for client in clients.values() for process in client["processes"]] == ["coordinated"] * 2
    for program in programs:
        program.result()
        program.stop()
    assert host.overlap(*([program] for program in programs)) == 0


@whose
def test_a_memory_quota_binds_either(host: MixedHost, before: Build, newer: bool) -> None:
    """Also one that is changed while the program runs."""
    host.start_with(THIS if newer else before, *SHORT_TURNS)
    for build, name in ((before, "older"), (THIS, "newer")):
        program = host.program_of(build, name, "memory=64MiB")
        assert program.run("cuda.alloc(100 << 20)[0]") == OUT_OF_MEMORY
        assert program.run("cuda.alloc(40 << 20)[0]") == 0
        assert host.clients()[name]["allocated"] == 40 << 20
        host.ask(messages.SetQuota(client=name, changes={"memory": "128MiB"}))
        eventually(lambda: program.run("cuda.alloc(60 << 20)[0]") == 0)  # noqa: B023 - called at once


@whose
def test_a_turn_ends_when_work_has_drained(host: MixedHost, before: Build, newer: bool) -> None:
    """A launch that is longer than the turn is waited for, whichever build's it is."""
    host.start_with(THIS if newer else before, *SHORT_TURNS)
    programs = [host.program_of(before, "older"), host.program_of(THIS, "newer")]
    for program in programs:
        program.start_busy(launch=0.3, look=1)
    eventually(lambda: turns_since(host, programs, 0) >= MANY // 2)
    for program in programs:
        program.result()
        program.stop()
    assert host.overlap(*([program] for program in programs)) == 0


def test_an_upgrade_and_its_undoing_while_programs_run(host: MixedHost, before: Build) -> None:
    """Each next coordinator adopts what the one before has left: clients, labels, quotas, turns."""
    host.start_with(before, *SHORT_TURNS)
    programs = [host.program_of(before, "older", "memory=100MiB"), host.program_of(THIS, "newer", "memory=100MiB")]
    for program in programs:
        program.start_busy()
    for build in (THIS, before, THIS):
        host.kill_coordinator()
        host.start_with(build, *SHORT_TURNS)
        eventually(lambda: len(host.clients()) == 2)
        adopted = time.monotonic_ns()
        eventually(lambda: turns_since(host, programs, adopted) >= MANY // 2)  # noqa: B023 - called at once
        clients = host.clients()
        assert {name: (one["label"], one["quota"]["memory"]) for name, one in clients.items()} == {
            "older": ("older", 100 << 20),
            "newer": ("newer", 100 << 20),
        }
    for program in programs:
        program.result()
        program.stop()
    assert host.overlap(*([program] for program in programs)) == 0


@whose
def test_notebooks_of_both_builds_share(
    host: MixedHost, before: Build, newer: bool, start: Callable[..., Notebook]
) -> None:
    """Launcher, magics and cell hooks are of the kernel's build."""
    host.start_with(THIS if newer else before, *SHORT_TURNS)
    older, ours = (start(host.kernelspec_of(build)) for build in (before, THIS))
    assert older.value("__import__('os').environ['LD_PRELOAD']") == str(before.shim)
    requests = [(notebook, notebook.start("work(2)")) for notebook in (older, ours)]
    for notebook, request in requests:
        assert notebook.finish(request)["status"] == "ok"
    assert host.overlap([older.pid], [ours.pid]) == 0
    assert len(turns(host.executions(older.pid), host.executions(ours.pid))) >= MANY
    eventually(lambda: [client["cells"] for client in host.clients().values()] == [0, 0], what="their ends are told")
    for notebook in (older, ours):
        assert "64" in notebook.run("%gpushare quota memory=64MiB")
        assert notebook.value("cuda.alloc(100 << 20)[0]") == OUT_OF_MEMORY
        assert "GPU" in notebook.run("%gpushare")


def test_this_builds_commands_understand_an_older_coordinator(host: MixedHost, before: Build) -> None:
    """What it can't do is said, and nothing else fails."""
    host.start_with(before, *SHORT_TURNS)
    host.program_of(before, "older")
    listed = host.command("status")
    assert listed.returncode == 0 and "older" in listed.stdout and "Traceback" not in listed.stderr, listed.stderr
    assert [client["id"] for client in json.loads(host.command("status", "--json").stdout)["clients"]] == ["older"]
    for words in (["config"], ["quota", "older", "memory=64MiB"], ["hold", "older"], ["release", "older"], ["doctor"]):
        done = host.command(*words)
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode == 0 or done.stderr or done.stdout, words


@whose
def test_messages_and_fields_of_a_later_wire_disturb_nobody(host: MixedHost, before: Build, newer: bool) -> None:
    """A coordinator answers what it doesn't know with an error that names the request, and goes on."""
    host.start_with(THIS if newer else before, *SHORT_TURNS)
    program = host.program_of(before, "older")
    with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rwb") as lines:
        connection.settimeout(10)
        connection.connect(host.socket)

        def ask(**message: Any) -> dict[str, Any]:
            lines.write(json.dumps(message).encode() + b"\n")
            lines.flush()
            answer: dict[str, Any] = json.loads(lines.readline())
            return answer

        unknown = ask(type="of a later wire", id=5, field=1)
        assert (unknown["type"], unknown["id"], unknown["reason"]) == ("error", 5, "malformed")
        known = ask(type="quota", id=6, client="older", of_a_later_wire={"field": [1]})
        assert (known["type"], known["id"]) == ("reply", 6)
    program.busy()
    program.stop()
