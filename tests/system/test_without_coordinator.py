"""Test of kernels when no coordinator can start: they start all the same, report that, and take turns."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from .notebook_client import SETUP, Notebook
from .system_host import SystemHost, wait_until

BROKEN = ["/bin/sh", "-c", "echo first >&2; echo the last line >&2; exit 3"]
MAX_HANDOFF_SECONDS = 15.0  # on a busy machine; turns take 30 s


def test_the_first_cell_shows_why_a_coordinator_has_ended_at_its_start(
    host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", json.dumps(BROKEN))
    notebook = start(setup=False)
    assert notebook.run("print('hello')") == "hello\n"
    expected = f"no coordinator answers at {host.socket}, and the one started there ended with status 3: the last line"
    assert expected in notebook.errors and "first" not in notebook.errors
    assert expected in notebook.run("%gpushare")


def test_kernels_take_turns_without_a_coordinator(
    host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["/bin/false"]')
    one = start(setup=False)
    assert one.run("print('hello')") == "hello\n"
    assert "GPU sharing does not work" in one.errors
    assert host.socket in one.errors
    one.run(SETUP)
    assert one.errors == ""  # the kernel reports it once
    one.run("work(0.01)")
    assert "does not work" in one.run("%gpushare")
    other = start(setup=False)
    other.run(SETUP)
    assert "GPU sharing does not work" in other.errors

    moment = time.monotonic_ns()
    request = one.start("for _ in range(300): work(0.002, 0.002)")
    wait_until(lambda: host.worked_since(moment, one.pid))
    known = len(host.launches(other.pid))
    other.run("work(0.01)")
    begin = host.launches(other.pid)[known].begin_ns
    end = max(launch.end_ns for launch in host.launches(one.pid) if launch.begin_ns < begin)
    assert (begin - end) / 1e9 < MAX_HANDOFF_SECONDS
    assert one.finish(request)["status"] == "ok"
    assert host.overlap([one.pid], [other.pid]) == 0
