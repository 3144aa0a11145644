"""Notebooks beside each other: when the device passes on, restarts, and the end of the coordinator."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from jupyter_gpushare.wire import address, messages

from .held import descriptors, mappings
from .host import Host, eventually, last_end, turns
from .notebook import SETUP, Notebook

Start = Callable[..., Notebook]


def test_the_end_of_a_cell_passes_the_device_on(patient: Host, start: Start) -> None:
    """After the linger, 50 ms, and not after the quantum or because it is idle in the midst of a cell."""
    one, other = start(), start()
    patient.ask(messages.Config(changes={"idle_release": 10.0}))
    for first, second in ((one, other), (other, one)) * 2:
        request = first.start("work(0.4)")
        eventually(lambda: patient.phase(first.client) == "running")  # noqa: B023 - called before the next round
        second.run("work(0.01)")
        assert first.finish(request)["status"] == "ok"
        end = last_end(patient.executions(first.pid))
        begin = next(e.begin_ns for e in patient.executions(second.pid) if e.begin_ns > end)
        assert (begin - end) / 1e9 < 0.3
    assert patient.overlap([one.pid], [other.pid]) == 0
    for notebook in (one, other):
        _history_is_true(patient, notebook)


def _history_is_true(host: Host, notebook: Notebook) -> None:
    """What the coordinator tells of its turns, by the device's own time stamps (both are of the monotonic clock)."""
    eventually(lambda: host.phase(notebook.client) == "idle")
    entries = host.ask(messages.History(client=notebook.client))["entries"]
    whats = Counter(entry["what"] for entry in entries)
    assert whats["running"] >= 2 and whats["cell_started"] == whats["cell_ended"] >= 4
    states = [entry for entry in entries if not entry["what"].startswith("cell")]
    held = [
        (first["at"] - 0.05, second["at"] + 0.05)
        for first, second in itertools.pairwise(states)
        if first["what"] in ("running", "draining")
    ]
    for execution in host.executions(notebook.pid):
        middle = (execution.begin_ns + execution.end_ns) / 2e9
        assert any(begin <= middle <= end for begin, end in held), (middle, states)


def test_a_restarted_kernel_is_the_same_client(patient: Host, start: Start) -> None:
    """With its quota, also one that was changed meanwhile; however it was restarted."""
    one = start()
    client = one.client
    patient.ask(messages.SetQuota(client=client, changes={"memory": "100MiB", "share": 0.5}))
    kept: Counter[str] = Counter()
    for now in (True, False, True, True):
        one.run("check(cuda.alloc(60 << 20)[0])")
        one.manager.restart_kernel(now=now)
        one.front_end.wait_for_ready(timeout=30)
        one.run(SETUP)
        clients = patient.clients()
        assert list(clients) == [client]
        assert clients[client]["quota"]["memory"] == 100 << 20
        assert clients[client]["quota"]["share"] == 0.5
        assert clients[client]["allocated"] == 0
        assert [process["pid"] for process in clients[client]["processes"]] == [one.pid]
        eventually(lambda: patient.clients()[client]["kernel_pids"] == [one.pid])
        kept = kept or descriptors(patient)
    eventually(lambda: descriptors(patient) <= kept)
    assert one.value("cuda.alloc(101 << 20)[0]") == 2  # CUDA_ERROR_OUT_OF_MEMORY: the quota holds


def test_a_kernel_that_is_shut_down_is_forgotten(patient: Host, start: Start) -> None:
    before = descriptors(patient)
    one = start()
    one.front_end.stop_channels()
    one.manager.shutdown_kernel()
    eventually(lambda: patient.clients() == {})
    eventually(lambda: descriptors(patient) <= before)
    assert mappings(patient) == 0


def test_the_kernel_that_has_the_turn_is_killed(patient: Host, start: Start) -> None:
    """Turns are 20 s here, and the coordinator is stopped: the kernel that waits has the device by the first try after
    the killed one has ended, and tries every 20 ms."""
    one, other = start(), start()
    one.start("while True: work(0.02)")
    eventually(lambda: patient.phase(one.client) == "running")
    request = other.start("work(0.01)")
    eventually(lambda: patient.phase(other.client) == "waiting")

    def tries() -> int:
        return patient.page(other.pid)["turn_tries"]

    def seconds_of_five_tries() -> float:
        began, first = time.monotonic(), tries()
        eventually(lambda: tries() >= first + 5)
        return time.monotonic() - began

    eventually(lambda: seconds_of_five_tries() < 0.15)
    assert patient.coordinator
    patient.coordinator.send_signal(signal.SIGSTOP)
    killed = time.monotonic_ns()
    os.kill(one.pid, signal.SIGKILL)
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    ended, before = time.monotonic_ns(), tries()
    assert other.finish(request)["status"] == "ok"
    assert tries() <= before + 1, "one may have been under way"
    assert patient.page(other.pid)["turn_epoch"] > 0, "by its permit"
    began = next(e.begin_ns for e in patient.executions(other.pid) if e.begin_ns > killed)
    assert (began - ended) / 1e9 < 1
    patient.coordinator.send_signal(signal.SIGCONT)
    assert patient.overlap([one.pid], [other.pid]) == 0


def test_kernels_bring_a_killed_coordinator_back(quick: Host, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """And go on from where they are: in turns again within 5 s, with the quota that was set before."""
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach", "--simulate", "--time-quantum", "0.1"]
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", json.dumps(argv))
    one, other = start(), start()
    quick.ask(messages.SetQuota(client=one.client, changes={"memory": "100MiB"}))
    requests = [(notebook, notebook.start("for _ in range(1500): work(0.002, 0.002)")) for notebook in (one, other)]
    eventually(lambda: len(turns(quick.executions(one.pid), quick.executions(other.pid))) >= 4)
    quick.kill_coordinator()
    killed = time.monotonic_ns()
    eventually(lambda: quick.took_turns_since(killed, one.pid, other.pid), 5 - (time.monotonic_ns() - killed) / 1e9)
    eventually(lambda: address.is_accepting(quick.socket))
    eventually(lambda: set(quick.clients()) == {one.client, other.client})
    assert quick.clients()[one.client]["quota"]["memory"] == 100 << 20
    eventually(lambda: sorted(client["cells"] for client in quick.clients().values()) == [1, 1])
    for notebook, request in requests:
        assert notebook.finish(request, 40)["status"] == "ok"
    assert quick.overlap([one.pid], [other.pid]) == 0
