"""Tests of a real JupyterHub: two users with different uids share a simulated device by the machine's coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from ..native import simlog
from ..system.notebook_client import SETUP
from ..system.system_host import turn_intervals, wait_until
from ..users.conftest import SOCKET
from .conftest import HubSetup
from .hub import START, Notebook, Refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the first test includes the start of the hub

OUT_OF_MEMORY = 2
MANY = 8
KERNELS = {"ada": "python3-gpushare", "bob": "python3"}  # the hub makes this kernel a shared one too
LABELS = {"ada": "secret of ada.ipynb", "bob": "secret of bob.ipynb"}


@pytest.fixture(scope="module")
def notebooks(hub_setup: HubSetup) -> Iterator[dict[str, Notebook]]:
    with contextlib.ExitStack() as stack:
        opened = {}
        for name, session in hub_setup.sessions.items():
            opened[name] = session.notebook(LABELS[name], KERNELS[name])
            stack.callback(opened[name].close)
            opened[name].run(SETUP)
        yield opened


def executions(hub_setup: HubSetup, notebook: Notebook) -> list[simlog.Execution]:
    return simlog.Log(hub_setup.host.folder / "simlog" / f"{notebook.pid}.simlog").read()


def check_refusal(status: int, text: str, hub_setup: HubSetup, *request: Any) -> None:
    """Check that a request of ada is refused with this status and text."""
    with pytest.raises(Refused) as refused:
        hub_setup.sessions["ada"].gpushare(*request)
    assert refused.value.status == status and text in refused.value.body


def test_each_server_runs_as_its_user_and_finds_the_machines_coordinator(
    hub_setup: HubSetup, notebooks: dict[str, Notebook]
) -> None:
    for name, notebook in notebooks.items():
        assert notebook.value("__import__('os').getuid()") == hub_setup.host.uid(name)
        status = hub_setup.sessions[name].gpushare("status")
        assert status["coordinator"]["socket"] == SOCKET
        assert {client["id"]: client["own"] for client in status["clients"]} == {
            other.kernel: other is notebook for other in notebooks.values()
        }


def test_users_alternate_turns_on_one_device(hub_setup: HubSetup, notebooks: dict[str, Notebook]) -> None:
    requests = {name: notebook.start("work(3.0)") for name, notebook in notebooks.items()}
    for name, notebook in notebooks.items():
        notebook.finish(requests[name])
    worked = [executions(hub_setup, notebook) for notebook in notebooks.values()]
    assert len(turn_intervals(*worked)) >= MANY
    assert simlog.overlap_seconds(worked) == 0


def test_only_its_owner_sees_a_notebooks_name(hub_setup: HubSetup, notebooks: dict[str, Notebook]) -> None:
    for name, session in hub_setup.sessions.items():
        seen = {client["user"]: client["label"] for client in session.gpushare("status")["clients"]}
        assert seen == {other: LABELS[other] if other == name else "" for other in LABELS}
        everything = str(session.gpushare("status")) + str(session.gpushare("history"))
        assert not any(LABELS[other] in everything for other in LABELS if other != name)


def test_user_configuration_does_not_change_the_tenant_limits(
    hub_setup: HubSetup, notebooks: dict[str, Notebook]
) -> None:
    """The configuration in ada's ~/.jupyter has other tenants, another policy and more memory for ada's server."""
    config = hub_setup.sessions["ada"].gpushare("config")
    assert (config["policy"], config["time_quantum"]) == ("interactive", "auto")
    assert list(config["tenants"]) == ["students"]
    assert notebooks["ada"].value("cuda.alloc(100 << 20)[0]") == OUT_OF_MEMORY
    assert notebooks["ada"].value("cuda.alloc(10 << 20)[0]") == 0
    own, others = notebooks["ada"].kernel, notebooks["bob"].kernel
    check_refusal(403, "admin", hub_setup, "config", "PATCH", {"time_quantum": 600})
    check_refusal(403, "", hub_setup, f"clients/{others}/quota", "PATCH", {"share": 0.5})
    check_refusal(403, "", hub_setup, f"clients/{others}/suspend", "POST")
    check_refusal(400, "students", hub_setup, f"clients/{own}/quota", "PATCH", {"memory": "200MiB"})


def test_no_other_coordinator_starts_during_an_outage(hub_setup: HubSetup, notebooks: dict[str, Notebook]) -> None:
    """Clients run on, users' servers start no coordinator, and the next coordinator gets all clients."""
    before = {name: notebook.pid for name, notebook in notebooks.items()}
    hub_setup.host.stop_coordinator()
    try:
        check_refusal(503, "no coordinator answers", hub_setup, "config")
        assert {name: notebook.pid for name, notebook in notebooks.items()} == before
        notebooks["ada"].run("work(0.01)")  # in turns without a coordinator
    finally:
        hub_setup.start_coordinator()
    wait_until(lambda: set(hub_setup.clients()) == {one.kernel for one in notebooks.values()})
    notebooks["bob"].run("work(0.01)")


def test_a_server_that_is_stopped_leaves_the_device_to_the_others(
    hub_setup: HubSetup, notebooks: dict[str, Notebook]
) -> None:
    """The stop comes in the middle of a cell. The coordinator keeps the client for a restart of its kernel."""
    ada = notebooks["ada"].kernel
    notebooks["ada"].start("work(600)")
    wait_until(lambda: hub_setup.clients()[ada]["phase"] == "running")
    waiting = notebooks["bob"].start("work(0.5)")
    hub_setup.hub.ask("DELETE", "/users/ada/server")
    notebooks["bob"].finish(waiting)
    wait_until(lambda: not hub_setup.clients().get(ada, {}).get("kernel_pids"), START)
    notebooks["bob"].run("work(0.01)")
