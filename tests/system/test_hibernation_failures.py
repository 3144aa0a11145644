"""Tests of hibernations and returns that the driver refuses, and of kills in the middle of both."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.launch import kernel_env
from jupyter_gpushare.wire import messages

from ..native.test_shim_transfer_failures import faulty_driver
from ..support import tier
from ..support.polling import wait_until
from .notebook_client import SETUP, Notebook
from .system_host import MIB, WAIT, SystemHost
from .test_hibernation import ARRAY, LAST, hibernate, state
from .test_move_failures import CHECKPOINT, HELD, INVALID_VALUE, LOCK, OUT_OF_MEMORY, RESTORE
from .test_moves import increment, start_program

HOLD = """
def report_hold():
    while cuda.library.faulty_hold(-1) != {held}:
        time.sleep(0.005)
    open({path!r}, "w").close()
cuda.library.faulty_hold_in({call!r})
threading.Thread(target=report_hold, daemon=True).start()
"""


@pytest.fixture
def notebook(
    default_settings_host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch
) -> Notebook:
    """Return a notebook of mode `swap` with an array of the value 7, and with a driver that fails on demand."""
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "swap")
    monkeypatch.setattr(kernel_env, "SIMULATED_DRIVER", faulty_driver())
    notebook = start()
    notebook.run(ARRAY)
    return notebook


def fail(notebook: Notebook, call: str, code: int) -> None:
    notebook.run(f"cuda.library.faulty_next({call.encode()!r}, 0, 1, {code})")


def assert_value(notebook: Notebook) -> None:
    notebook.run(LAST)
    assert notebook.value("value.value") == 8.0


def kill_kernel(host: SystemHost, notebook: Notebook) -> None:
    notebook.manager.restart_kernel(now=True)
    notebook.front_end.wait_for_ready(timeout=60)


def kill_coordinator(host: SystemHost, notebook: Notebook) -> None:
    host.kill_coordinator()
    host.start_coordinator()
    wait_until(lambda: host.clients().get(notebook.client_id, {}).get("processes"))


@pytest.mark.parametrize(
    ("call", "kill"),
    [
        (CHECKPOINT, kill_coordinator),
        (RESTORE, kill_kernel),
        *tier.nightly([(CHECKPOINT, kill_kernel), (RESTORE, kill_coordinator)]),
    ],
)
def test_a_kill_during_the_drivers_part_loses_nothing(
    default_settings_host: SystemHost,
    notebook: Notebook,
    call: str,
    kill: Callable[[SystemHost, Notebook], None],
) -> None:
    """Nothing of the other client is lost, nor of a notebook that goes on. A killed notebook leaves the device free."""
    host = default_settings_host
    other = start_program(host, "other", size=64 * MIB)
    path = host.folder / "held"
    notebook.run(HOLD.format(held=HELD, path=str(path), call=call.encode()))
    cell = ""
    if call == RESTORE:
        hibernate(host, notebook)
        cell = notebook.start(LAST)
    else:
        host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(path.exists, 2 * WAIT)
    kill(host, notebook)
    host.request(messages.Config(changes={"hibernate_after": 0}))
    if kill is kill_kernel:
        wait_until(lambda: host.clients()[notebook.client_id]["state"] not in ("hibernated", "moving"))
        assert host.clients()[notebook.client_id]["hibernated"] == 0
        notebook.run(SETUP)
        notebook.run(ARRAY)
        assert_value(notebook)
    elif cell:
        assert notebook.finish(cell)["status"] == "ok"
        assert notebook.value("value.value") == 8.0
    else:
        assert_value(notebook)
    assert increment(other) == 8.0


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (CHECKPOINT, "could not checkpoint the process (CUDA error 2); nothing has changed"),
        *tier.nightly([(LOCK, "does not checkpoint the process now (CUDA error 2); nothing has changed")]),
    ],
)
def test_a_notebook_stays_after_a_refusal(
    default_settings_host: SystemHost, notebook: Notebook, call: str, error: str
) -> None:
    host = default_settings_host
    fail(notebook, call, OUT_OF_MEMORY)
    host.request(messages.Config(changes={"hibernate_after": 1}))
    wait_until(lambda: error in (host.folder / "coordinator.log").read_text(), 2 * WAIT)
    wait_until(lambda: state(host, notebook.client_id) == "idle")
    assert host.clients()[notebook.client_id]["hibernated"] == 0
    assert increment(start_program(host, "other", size=64 * MIB)) == 8.0
    assert_value(notebook)


def test_the_user_gets_the_advice_to_restart_a_notebook_that_the_driver_does_not_restore(
    default_settings_host: SystemHost, notebook: Notebook
) -> None:
    """Other clients go on, and the notebook has the device again after a restart."""
    host = default_settings_host
    fail(notebook, RESTORE, INVALID_VALUE)
    hibernate(host, notebook)
    host.request(messages.Config(changes={"hibernate_after": 0}))
    notebook.start(LAST)
    wait_until(lambda: "restart the kernel" in host.clients()[notebook.client_id]["state_text"], 2 * WAIT)
    client = host.clients()[notebook.client_id]
    assert client["expected_wait"] is None
    assert "the driver could not restore the hibernated process" in str(client["notes"])
    assert increment(start_program(host, "other", size=64 * MIB)) == 8.0
    kill_kernel(host, notebook)
    notebook.run(SETUP)
    notebook.run(ARRAY)
    assert_value(notebook)
