"""Tests of several notebooks: handoffs, restarts of kernels, and the end of the coordinator."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.wire import address, messages

from .notebook_client import SETUP, Notebook
from .resource_counts import descriptors, mapped_page_count
from .system_host import MOST, WAIT, SystemHost, last_end, turn_intervals, wait_until

Start = Callable[..., Notebook]


def test_cell_end_hands_the_device_off(fcfs_host: SystemHost, start: Start) -> None:
    """The handoff comes after the linger of 50 ms, and not by the quantum or the idle release, which take minutes."""
    one, other = start(), start()
    for notebook in (one, other):
        notebook.run(fcfs_host.allocation(MOST))
    fcfs_host.request(messages.Config(changes={"idle_release": 600.0}))
    for first, second in ((one, other), (other, one)) * 2:
        request = first.start("work(0.4)")
        wait_until(lambda: fcfs_host.phase(first.client_id) == "running")  # noqa: B023 - called before the next round
        second.run("work(0.01)")
        assert first.finish(request)["status"] == "ok"
        end = last_end(fcfs_host.launches(first.pid))
        begin = next(e.begin_ns for e in fcfs_host.launches(second.pid) if e.begin_ns > end)
        assert 0.04 <= (begin - end) / 1e9 < 10.0
        _check_recorded_handoff(fcfs_host, first, second, end / 1e9, begin / 1e9)
    assert fcfs_host.overlap([one.pid], [other.pid]) == 0
    for notebook in (one, other):
        _check_recorded_cells(fcfs_host, notebook)


def _check_recorded_handoff(host: SystemHost, first: Notebook, second: Notebook, end: float, begin: float) -> None:
    """Compare the history of a handoff with the device's times of the last and the first work, in monotonic seconds.

    The coordinator records the end of a turn after the work has ended, and a grant before the client works.
    The record of any other change follows the change after some time, so the test does not compare their times.
    """
    entries = host.request(messages.History())["entries"]
    grant = max(
        e["at"] for e in entries if (e["client"], e["what"]) == (second.client_id, "running") and e["at"] < begin
    )
    idle = max(e["at"] for e in entries if (e["client"], e["what"]) == (first.client_id, "idle") and e["at"] <= grant)
    assert end <= idle <= grant < begin


def _check_recorded_cells(host: SystemHost, notebook: Notebook) -> None:
    wait_until(lambda: host.phase(notebook.client_id) == "idle")
    entries = host.request(messages.History(client=notebook.client_id))["entries"]
    whats = Counter(entry["what"] for entry in entries)
    assert whats["running"] >= 2 and whats["cell_started"] == whats["cell_ended"] >= 4


def test_a_cell_that_runs_again_is_expected_to_take_as_long(default_settings_host: SystemHost, start: Start) -> None:
    """The cell at the end has another text, and a text that never ran has no expectation."""
    notebook = start()
    for code in ("work(1.5)", "work(1.5)", "work(0.1)"):
        notebook.run(code)
    entries = default_settings_host.request(messages.History(client=notebook.client_id))["entries"]
    starts, ends = (
        [entry for entry in entries if entry["what"] == what][-3:] for what in ("cell_started", "cell_ended")
    )
    assert [entry.get("expected_seconds") is None for entry in ends] == [True, False, True]
    # The busy time is an estimate, within half a second of the work and, on a busy machine, of the length of the cell.
    first, again = (end["at"] - start["at"] for start, end in zip(starts[:2], ends[:2], strict=True))
    assert 1.0 <= ends[1]["expected_seconds"] <= first + 0.5
    assert 1.0 <= ends[1]["gpu_seconds"] <= again + 0.5


def test_a_cell_that_runs_again_is_expected_to_need_as_much_memory(
    default_settings_host: SystemHost, start: Start
) -> None:
    """The coordinator reads the memory once a second, so the cell goes on until the coordinator has done so."""
    host, notebook = default_settings_host, start()
    end = host.folder / "end"
    cell = f"error, array = cuda.alloc(64 << 20); check(error)\nwhile not os.path.exists({str(end)!r}): work(0.1)\n"

    def uptime() -> float:
        return float(host.status()["coordinator"]["uptime_seconds"])

    for _ in range(2):
        request = notebook.start(cell + "check(cuda.free(array))")
        wait_until(lambda: host.clients()[notebook.client_id]["allocated"] == 64 << 20)
        since = uptime()
        wait_until(lambda since=since: uptime() > since + 2.5)
        end.touch()
        assert notebook.finish(request)["status"] == "ok"
        end.unlink()
        notebook.run("pass")
    entries = host.request(messages.History(client=notebook.client_id))["entries"]
    (again,) = (entry for entry in entries if entry.get("expected_allocated"))
    assert again["allocated"] == again["expected_allocated"] == 64 << 20


def test_a_restarted_kernel_is_the_same_client(default_settings_host: SystemHost, start: Start) -> None:
    """The client keeps its quota, also after a change, whatever the way of the restart."""
    one = start()
    client = one.client_id
    default_settings_host.request(messages.SetQuota(client=client, changes={"memory": "100MiB", "share": 0.5}))
    baseline: Counter[str] = Counter()
    for now in (True, False, True, True):
        one.run("check(cuda.alloc(60 << 20)[0])")
        one.manager.restart_kernel(now=now)
        one.front_end.wait_for_ready(timeout=WAIT)
        one.run(SETUP)
        clients = default_settings_host.clients()
        assert list(clients) == [client]
        assert clients[client]["quota"]["memory"] == 100 << 20
        assert clients[client]["quota"]["share"] == 0.5
        assert clients[client]["allocated"] == 0
        assert [process["pid"] for process in clients[client]["processes"]] == [one.pid]
        wait_until(lambda: default_settings_host.clients()[client]["kernel_pids"] == [one.pid])
        baseline = baseline or descriptors(default_settings_host)
    wait_until(lambda: descriptors(default_settings_host) <= baseline)
    assert one.value("cuda.alloc(101 << 20)[0]") == 2  # CUDA_ERROR_OUT_OF_MEMORY: the quota holds


def test_kernel_shutdown_unregisters_the_client(default_settings_host: SystemHost, start: Start) -> None:
    before = descriptors(default_settings_host)
    one = start()
    one.front_end.stop_channels()
    one.manager.shutdown_kernel()
    wait_until(lambda: default_settings_host.clients() == {})
    wait_until(lambda: descriptors(default_settings_host) <= before)
    assert mapped_page_count(default_settings_host) == 0


def test_killed_kernel_frees_the_device(fcfs_host: SystemHost, start: Start) -> None:
    """Turns take an hour here, and the coordinator is stopped.

    The waiting kernel tries to enter every 20 ms, and enters at the first try after the killed kernel has ended.
    """
    one, other = start(), start()
    for notebook in (one, other):
        notebook.run(fcfs_host.allocation(MOST))
    one.start("while True: work(0.02)")
    wait_until(lambda: fcfs_host.phase(one.client_id) == "running")
    request = other.start("work(0.01)")
    wait_until(lambda: fcfs_host.phase(other.client_id) == "waiting")

    def tries() -> int:
        return fcfs_host.page(other.pid)["turn_refused_entries"]

    def seconds_of_five_tries() -> float:
        start_time, first = time.monotonic(), tries()
        wait_until(lambda: tries() >= first + 5)
        return time.monotonic() - start_time

    wait_until(lambda: seconds_of_five_tries() < 0.15)
    assert fcfs_host.coordinator
    fcfs_host.coordinator.send_signal(signal.SIGSTOP)
    os.kill(one.pid, signal.SIGKILL)
    os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
    before = tries()
    assert other.finish(request)["status"] == "ok"
    assert tries() <= before + 1, "one try may have begun before the end"
    assert fcfs_host.page(other.pid)["turn_epoch"] > 0, "the kernel must enter by its permit"
    fcfs_host.coordinator.send_signal(signal.SIGCONT)
    assert fcfs_host.overlap([one.pid], [other.pid]) == 0


def test_kernels_restart_a_killed_coordinator(
    short_quantum_host: SystemHost, start: Start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The kernels take turns again, with the quota that was set before."""
    argv = [sys.executable, "-m", "jupyter_gpushare", "coordinator", "--detach", "--simulate", "--time-quantum", "0.1"]
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", json.dumps(argv))
    one, other = start(), start()
    for notebook in (one, other):
        notebook.run(short_quantum_host.allocation(MOST))
    short_quantum_host.request(messages.SetQuota(client=one.client_id, changes={"memory": "200MiB"}))
    end = tmp_path / "end"
    code = f"import os\nwhile not os.path.exists({str(end)!r}): work(0.002, 0.002)"
    requests = [(notebook, notebook.start(code)) for notebook in (one, other)]
    wait_until(
        lambda: len(turn_intervals(short_quantum_host.launches(one.pid), short_quantum_host.launches(other.pid))) >= 4
    )
    short_quantum_host.kill_coordinator()
    killed = time.monotonic_ns()
    wait_until(lambda: short_quantum_host.took_turns_since(killed, one.pid, other.pid))
    wait_until(lambda: address.is_accepting(short_quantum_host.socket))
    wait_until(lambda: set(short_quantum_host.clients()) == {one.client_id, other.client_id})
    assert short_quantum_host.clients()[one.client_id]["quota"]["memory"] == 200 << 20
    wait_until(lambda: sorted(client["cells"] for client in short_quantum_host.clients().values()) == [1, 1])
    end.touch()
    for notebook, request in requests:
        assert notebook.finish(request)["status"] == "ok"
    assert short_quantum_host.overlap([one.pid], [other.pid]) == 0
