"""Tests of the visibility of the snapshot's parts for owners, other users and admins."""

from __future__ import annotations

import json
import os
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.cli.client import select_client
from jupyter_gpushare.cli.doctor.clients import overruns as findings
from jupyter_gpushare.cli.status import client_label
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.views.snapshot import user_name
from jupyter_gpushare.coordinator.views.snapshot_visibility import SnapshotEncoder
from jupyter_gpushare.wire import messages

from .conftest import OTHER_UID, Connect, CoordinatorProcess, ProcessFactory, ask
from .protocol_process import wait_until

ME = os.getuid()


def client_of(status: dict[str, Any], name: str) -> dict[str, Any]:
    return next(client for client in status["clients"] if client["id"] == name)


def test_labels_and_processes_of_other_users_are_hidden(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    other = as_other_user()
    ask(other, "register", client="theirs", token="t", label="their/secret.ipynb")
    coordinator.request(messages.Register(client="mine", token="secret", label="my/secret.ipynb"))
    processes("mine")

    view = ask(other, "status")
    assert view["viewer"] == {"user": user_name(str(OTHER_UID)), "admin": False}
    theirs, mine = client_of(view, "theirs"), client_of(view, "mine")
    assert (theirs["own"], theirs["may_change"], theirs["label"]) == (True, True, "their/secret.ipynb")
    assert (mine["own"], mine["may_change"], mine["label"]) == (False, False, "")
    assert (mine["processes"], mine["kernel_pids"], mine["notes"]) == ([], [], [])
    assert mine["user"] == user_name(str(ME)), "the user of another client is hidden"
    assert "my/secret" not in json.dumps(view)
    assert ask(other, "release", client="mine") == "forbidden", "`may_change` is wrong"

    view = coordinator.status()
    assert view["viewer"] == {"user": user_name(str(ME)), "admin": True}
    theirs, mine = client_of(view, "theirs"), client_of(view, "mine")
    assert (theirs["own"], theirs["may_change"], theirs["label"]) == (False, True, "")
    assert (mine["own"], mine["label"]) == (True, "my/secret.ipynb")
    assert [process["pid"] for process in mine["processes"]] == [os.getpid()]


def test_running_cells_are_visible_to_the_owner(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    kernel = processes.kernel("mine")
    kernel.cell("start", "1", cell_id="4ad0")
    kernel.cell("start", "2")
    wait_until(lambda: (coordinator.client("mine") or {}).get("cells") == 2)
    assert client_of(coordinator.status(), "mine")["cell_ids"] == ["4ad0"]
    assert client_of(ask(as_other_user(), "status"), "mine")["cell_ids"] == []
    kernel.cell("end", "1")
    wait_until(lambda: client_of(coordinator.status(), "mine")["cell_ids"] == [])


def test_each_subscriber_gets_the_view_of_its_user(
    coordinator: CoordinatorProcess, processes: ProcessFactory, as_other_user: Connect
) -> None:
    both = (as_other_user(), processes.connection())
    for connection in both:
        assert ask(connection, "subscribe")["clients"] == []
    coordinator.request(messages.Register(client="mine", token="secret", label="my/secret.ipynb"))
    labels = []
    for connection in both:
        while not (status := (connection.receive() or {})["status"])["clients"]:
            pass
        labels.append((status["clients"][0]["label"], status["viewer"]["admin"]))
    assert labels == [("", False), ("my/secret.ipynb", True)]


def test_one_view_serves_all_of_a_user(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Sixteen subscriptions of one user get the same bytes."""
    subscribers = [processes.connection() for _ in range(16)]
    for connection in subscribers:
        ask(connection, "subscribe")
    coordinator.request(messages.Register(client="a", token="secret", label="a.ipynb"))
    lines = []
    for connection in subscribers:
        wait_until(lambda c=connection: b"\n" in c.received or c.received.extend(c.socket.recv(1 << 16)))  # type: ignore[misc]
        lines.append(bytes(connection.received).partition(b"\n")[0])
    assert len(set(lines)) == 1 and b"a.ipynb" in lines[0]


def test_admins_see_processes_and_no_labels() -> None:
    process = {"pid": 17}
    client = {"id": "a", "label": "a.ipynb", "notes": ["it gives way"], "processes": [process], "kernel_pids": [16]}
    client |= {"limits": []}
    status = {"devices": [], "clients": [client], "coordinator": {}}
    (view,) = msgspec.json.decode(SnapshotEncoder(status, {"a": "4242"}).for_user(Identity(str(ME), True, 1, ME)))[
        "clients"
    ]
    assert (view["label"], view["notes"], view["processes"], view["kernel_pids"]) == ("", [], [process], [16])
    assert (view["own"], view["may_change"]) == (False, True)
    (view,) = msgspec.json.decode(SnapshotEncoder(status, {"a": "4242"}).for_user(Identity("4242", False, 1, 4242)))[
        "clients"
    ]
    assert view == {**client, "limit_text": "", "own": True, "may_change": True}
    assert client["label"] == "a.ipynb", "the encoder has changed the whole snapshot"


FOREIGN: dict[str, Any] = {
    "id": "6b9ad1b2-0a4c", "label": "", "user": "ada", "own": False, "may_change": True, "phase": "overrun",
    "devices": ["GPU-0"], "processes": [],
}  # fmt: skip


def test_client_without_a_label_is_shown_by_user() -> None:
    assert client_label(FOREIGN) == "ada (6b9ad1b2)"
    assert client_label({**FOREIGN, "own": True}) == "6b9ad1b2"
    assert client_label({**FOREIGN, "label": "a.ipynb"}) == "a.ipynb"
    with pytest.raises(ValueError, match=r"of ada \(6b9ad1b2-0a4c\)"):
        select_client("other", [FOREIGN])
    (finding,) = findings({"clients": [FOREIGN], "devices": []})
    assert "a client of ada does not end its turn" in finding.message
    assert "ask ada to interrupt the client" in finding.remedy
