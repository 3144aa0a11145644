"""Tests of the hibernation of idle notebooks, on a host with simulated devices and the shipped defaults."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_gpushare.metrics import prometheus
from jupyter_gpushare.wire import messages

from ..support.polling import wait_until
from .notebook_client import Notebook
from .system_host import MIB, WAIT, SystemHost
from .test_moves import increment, start_program

ARRAY = """
import ctypes
size = 64 << 20
array = cuda.alloc(size)[1]
check(cuda.launch("fill_f32", array, 7.0, size // 4))
check(cuda.cuCtxSynchronize())
"""
LAST = """
check(cuda.launch("work_f32", array, size // 4, 0, 0))
value = ctypes.c_float()
check(cuda.cuMemcpyDtoH_v2(byref(value), c_uint64(array + size - 4), c_size_t(4)))
check(cuda.cuStreamQuery(None))
"""
QUERY_IN_A_THREAD = """
import os, threading, time
def query():
    while not os.path.exists({path!r}):
        time.sleep(0.05)
    queries.append(cuda.cuStreamQuery(stream))
queries, stream = [], c_void_p(cuda.stream(1))
thread = threading.Thread(target=query)
thread.start()
"""


@pytest.fixture
def notebook(
    default_settings_host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> Notebook:
    """Return a notebook of mode `swap` with an array of the value 7, on a host with a running coordinator."""
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "swap")
    notebook = start()
    notebook.run(ARRAY)
    return notebook


def state(host: SystemHost, client: str) -> str:
    return str(host.clients()[client]["state"])


def hibernate(host: SystemHost, notebook: Notebook) -> None:
    host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(lambda: state(host, notebook.client_id) == "hibernated", 2 * WAIT)


def test_an_idle_notebook_leaves_the_device_and_returns(default_settings_host: SystemHost, notebook: Notebook) -> None:
    hibernate(default_settings_host, notebook)
    client = default_settings_host.clients()[notebook.client_id]
    assert client["hibernated"] > 0
    assert (client["resident"], client["context_memory"]) == (0, 0)
    assert default_settings_host.status()["devices"][0]["context_memory"] == 0
    assert "hibernated" in default_settings_host.command("status").stdout
    gauges = {family.name: family for family in prometheus.snapshot_metrics(default_settings_host.status())}
    assert [one.value for one in gauges["gpushare_hibernated_clients"].samples] == [1]
    assert [one.value for one in gauges["gpushare_hibernated_bytes"].samples] == [client["hibernated"]]
    notebook.run(LAST)
    assert notebook.value("value.value") == 8.0


def test_a_notebook_returns_after_a_restart_of_the_coordinator(
    default_settings_host: SystemHost, notebook: Notebook
) -> None:
    hibernate(default_settings_host, notebook)
    before = default_settings_host.clients()[notebook.client_id]["hibernated"]
    default_settings_host.kill_coordinator()
    default_settings_host.start_coordinator()
    wait_until(lambda: default_settings_host.clients().get(notebook.client_id, {}).get("hibernated") == before)
    notebook.run(LAST)
    assert notebook.value("value.value") == 8.0


def test_a_query_of_a_stream_in_a_thread_brings_the_notebook_back(
    default_settings_host: SystemHost, notebook: Notebook, tmp_path: Path
) -> None:
    path = tmp_path / "begin"
    notebook.run(QUERY_IN_A_THREAD.format(path=str(path)))
    hibernate(default_settings_host, notebook)
    default_settings_host.request(messages.Config(changes={"hibernate_after": 0}))
    path.touch()
    wait_until(lambda: state(default_settings_host, notebook.client_id) != "hibernated", 2 * WAIT)
    notebook.run("thread.join()")
    assert notebook.value("queries") == [0]


def test_a_notebook_that_could_not_return_stays(
    default_settings_host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A return needs more than the memory that leaves, and this notebook has nearly the whole device."""
    host = default_settings_host
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "plain")
    notebook = start()
    notebook.run("array = cuda.alloc(cuda.info()[0] - (4 << 20))[1]\ncheck(cuda.spin() or cuda.cuCtxSynchronize())")
    host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(lambda: "its return would need" in (host.folder / "coordinator.log").read_text(), 2 * WAIT)
    notebook.run("check(cuda.spin() or cuda.cuCtxSynchronize())")


def test_a_notebook_returns_between_turns_of_a_program(default_settings_host: SystemHost, notebook: Notebook) -> None:
    """The program needs most of the device. A program without cells does not hibernate when its work has ended."""
    host = default_settings_host
    hibernate(host, notebook)
    job = start_program(host, "job", size=180 * MIB)
    job.busy()
    notebook.run(LAST)
    assert notebook.value("value.value") == 8.0
    job.stop()
    host.command("release", "job")  # a client keeps its turn while no other client waits
    wait_until(lambda: "the client is no notebook" in (host.folder / "coordinator.log").read_text(), 2 * WAIT)
    assert increment(job) == 8.0


def test_a_notebook_of_unified_memory_stays(default_settings_host: SystemHost, start: Callable[..., Notebook]) -> None:
    host = default_settings_host
    notebook = start()
    notebook.run(ARRAY)
    host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(lambda: "has memory mode unified" in (host.folder / "coordinator.log").read_text(), 2 * WAIT)
    notebook.run(LAST)
    assert notebook.value("value.value") == 8.0
