"""Tests of what limits a client under the shipped defaults, in `status` and by `%gpushare why`."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from jupyter_gpushare.wire import messages

from ..coordinator.test_metrics_server import http, samples
from ..support.polling import wait_until
from .notebook_client import Notebook
from .system_host import MIB, SystemHost, stop_all

TIME_LIMIT = "no turn: it has run for as long as the limit of its quota allows so far"
SUSPENDED = "no turn: it is suspended"
OTHER_COORDINATOR = "no turn: a client of another coordinator has its device"
TAKEOVER = "no turn: its memory does not fit beside that of an online client, which would lose too much time"
PACKING = r"no turn beside {}: together they did ([\d.]+) % less work than in turns"
ADAPTIVE = r"at most [\d,]+ blocks?/s: the speed of online is kept \([\d.]+ % slower than without offline clients\)"
OTHERS_WAIT = "at most 20 ms of work queued: other clients wait, or run beside it"
SIZE = 160 * MIB  # of 256 MiB
FILL = f"array = cuda.alloc({SIZE})[1]; check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({SIZE})))"
LAUNCH = 0.002  # seconds
# The work is in a thread, so that the kernel can run `%gpushare why` while the work waits.
START_WORK = f"""
def work_in_thread():
    cuda.make_current()
    while True:
        work({LAUNCH}, {LAUNCH})
        time.sleep({LAUNCH})
threading.Thread(target=work_in_thread, daemon=True).start()
"""


def client_with(host: SystemHost, name: str, *reasons: str) -> dict[str, Any] | None:
    """Return the client if it has limits with these reasons and no others."""
    client = host.clients()[name]
    return client if [limit["reason"] for limit in client["limits"]] == [*reasons] else None


def shown_limit(text: str, limit: str, seconds: int = 1) -> re.Match[str] | None:
    """Return where a text, with any line breaks, shows the limit (a pattern) as in force for at least `seconds`."""
    found = re.search(rf"{limit} \(for (?P<seconds>\d+) s\)", " ".join(text.split()))
    return found if found and int(found["seconds"]) >= seconds else None


def wait_until_shown(host: SystemHost, notebook: Notebook, limit: str, seconds: int = 1) -> re.Match[str]:
    """Wait until `jupyter gpushare status` and `%gpushare why` have shown the limit, and return the match."""
    shown = wait_until(lambda: shown_limit(host.command("status").stdout, limit, seconds), 60.0)
    wait_until(lambda: shown_limit(notebook.run("%gpushare why"), f"This kernel is limited: {limit}", seconds), 60.0)
    return shown


def test_a_notebook_that_has_used_up_its_limit_has_the_reason(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    host, notebook = default_settings_host, start()
    assert client_with(host, notebook.client_id)
    notebook.run("%gpushare limit=0.05")
    notebook.run(START_WORK)
    client = wait_until(lambda: client_with(host, notebook.client_id, "time_limit"))
    assert client["limit_text"] == TIME_LIMIT
    wait_until(lambda: f"This kernel is limited: {TIME_LIMIT}" in notebook.run("%gpushare why"))


def test_a_suspended_notebook_has_the_reason(default_settings_host: SystemHost, start: Callable[..., Notebook]) -> None:
    host, notebook = default_settings_host, start()
    assert "suspended" not in notebook.run("%gpushare why")
    host.request(messages.Suspend(client=notebook.client_id))
    client = client_with(host, notebook.client_id, "suspended")
    assert client and client["limit_text"] == SUSPENDED
    assert SUSPENDED in notebook.run("%gpushare why")
    host.request(messages.Resume(client=notebook.client_id))
    assert SUSPENDED not in notebook.run("%gpushare why")


def test_a_notebook_that_waits_for_a_client_of_another_coordinator_has_the_reason(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """The other program has a coordinator of its own, as a program of another user has, and holds the device."""
    host, notebook = default_settings_host, start()
    command = f'["{sys.executable}", "-m", "jupyter_gpushare", "coordinator", "--detach"]'
    others = {"GPUSHARE_SOCKET": f"{host.folder}/o.sock", "XDG_STATE_HOME": f"{host.folder}/others"}
    other = host.run(GPUSHARE_COORDINATOR_ARGV=command, **others)
    other.run("import jupyter_gpushare as gs; cuda = Cuda(); gs.hold('5min')")
    assert other.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0
    began = time.monotonic()
    notebook.run(START_WORK)
    shown = wait_until_shown(host, notebook, OTHER_COORDINATOR, seconds=2)
    assert int(shown["seconds"]) <= time.monotonic() - began + 1
    other.run("gs.release()")
    wait_until(lambda: "is limited" not in notebook.run("%gpushare why"))
    assert host.worked_since(round(began * 1e9), notebook.pid)
    other.run("from jupyter_gpushare.wire import messages; from jupyter_gpushare.wire.client import Client")
    other.run("Client(os.environ['GPUSHARE_SOCKET']).request(messages.Stop())")


def set_parameters(host: SystemHost, monkeypatch: pytest.MonkeyPatch, parameters: str) -> None:
    """Set the parameters of the simulated driver, also for notebooks, which have the environment of the test."""
    host.config = host.folder / "parameters"
    host.config.write_text(parameters)
    monkeypatch.setenv("GPUSHARE_SIM_CONFIG", str(host.config))


def test_an_offline_notebook_whose_turn_would_cost_an_online_program_too_much_has_the_reason(
    host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The online program has bursts and pauses of a second. After an offline turn its memory must return."""
    device = "[device]\nmemory = 256MiB\nh2d_bandwidth = 256MiB/s\nd2h_bandwidth = 256MiB/s\n"
    set_parameters(host, monkeypatch, device)
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "swap")
    host.start_coordinator()
    online, notebook = host.program("online", GPUSHARE_MEMORY_MODE="swap"), start()
    notebook.run(FILL)
    online.run(FILL)
    notebook.run("%gpushare class=offline")
    online.busy(launch=LAUNCH, sync_every=8, burst=1.0, rest=1.0)
    notebook.run(START_WORK)
    wait_until_shown(host, notebook, TAKEOVER, seconds=2)
    online.stop()
    online.signal_end()
    wait_until(lambda: "is limited" not in notebook.run("%gpushare why"))


def test_a_notebook_that_was_separated_from_a_program_has_the_reason(
    host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two uses half of the device. The device loses most of its time when it works for both at once."""
    set_parameters(host, monkeypatch, "slice = 2ms\nslice_switch = 6ms\n[device]\nmemory = 256MiB\n")
    host.start_coordinator()
    program, notebook = host.program("program"), start()
    notebook.run(START_WORK)
    program.start_busy(launch=LAUNCH, sync_every=1, pause=LAUNCH)
    shown = wait_until_shown(host, notebook, PACKING.format("program"))
    assert 10 < float(shown[1]) < 90
    program.result()
    program.stop()
    program.signal_end()
    wait_until(lambda: "is limited" not in notebook.run("%gpushare why"))


def test_an_offline_program_has_the_reason_while_the_rate_of_an_online_one_is_measured(
    default_settings_host: SystemHost,
) -> None:
    host, began = default_settings_host, time.time()
    offline, online = (host.program(name, f"service={name}") for name in ("offline", "online"))
    offline.busy()
    online.busy(period=0.005)
    client = wait_until(lambda: client_with(host, "offline", "measuring"))
    (limit,) = client["limits"]
    assert (limit["unit"], limit["colocated_with"], limit["loss"]) == ("blocks", ["online"], None)
    assert began - 1 <= limit["since"] <= time.time() + 1
    assert client["limit_text"].endswith("/s: the speed of online without offline clients is measured first")
    stop_all(offline, online)


def test_an_offline_notebook_has_its_rate_and_the_loss_of_the_online_program(
    host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """The metrics have the same figures as `status` and `%gpushare why`."""
    metrics = f"{host.folder}/m.sock"
    host.start_coordinator(f"--GpuShare.metrics=unix:{metrics}")
    notebook, online = start(), host.program("online", "service=online")
    notebook.run("%gpushare class=offline")
    online.busy(launch=LAUNCH, sync_every=1, period=3 * LAUNCH)
    notebook.run(START_WORK)
    wait_until_shown(host, notebook, ADAPTIVE)
    wait_until(lambda: host.clients()["online"]["limit_text"] == OTHERS_WAIT)
    limit = ("gpushare_limit", notebook.client_id, "adaptive", "blocks")
    exported = wait_until(lambda: limit in (found := samples(http(metrics)[1])) and found)
    assert exported[limit] > 0
    assert exported["gpushare_limited_since_timestamp_seconds", notebook.client_id, "adaptive"] <= time.time() + 1
    assert 0 <= exported["gpushare_online_loss_ratio", notebook.client_id] < 1
    online.stop()
    online.signal_end()
    wait_until(lambda: "is limited" not in notebook.run("%gpushare why"))
