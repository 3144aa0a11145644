"""Tests of launch budgets of colocated clients, and of `limits` and `limit_text` in the snapshot."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec
import pytest

from jupyter_gpushare.coordinator.clients.limit_times import LimitTimes
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.views import launch_limits
from jupyter_gpushare.coordinator.views.snapshot_visibility import SnapshotEncoder
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import TIME

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import lock_as_other_coordinator, wait_until
from .test_documented_snapshot import check

SHARE = {"rate": 0.305, "unit": "device_seconds", "reason": "share", "colocated_with": ["b"], "loss": None}
ME = str(os.getuid())


def test_colocated_clients_have_launch_limits_with_reasons(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    coordinator = idle_coordinator.start(quantum=20, sharing="packed")
    for name, share in (("a", 0.305), ("b", 0.5)):
        coordinator.request(
            messages.Register(client=name, token="secret", label=f"{name}.ipynb", quota=f"share={share}")
        )
    a, b, second = processes("a"), processes("b"), processes("a")
    a.allocate(1 << 30)
    a.run_turn()
    assert (coordinator.client("a") or {})["limit_text"] == ""
    b.run_turn()
    wait_until(lambda: a.control.budget_rate)
    for process in (a, second):
        assert (process.control.budget_rate, process.control.budget_unit) == (305_000_000, TIME)
    client = coordinator.client("a") or {}
    (limit,) = client["limits"]
    assert limit == SHARE | {"since": limit["since"], "text": client["limit_text"]}
    assert abs(time.time() - limit["since"]) < 60
    assert client["limit_text"] == "at most 30.5 % of the device's time: its share, colocated with b.ipynb"
    big = processes("big")
    big.allocate(8 << 30)
    big.start_waiting()
    wait_until(lambda: a.contended)
    text = (coordinator.client("a") or {})["limit_text"]
    assert text.endswith("; at most 20 ms of work queued: other clients wait, or run beside it")
    b.finish()
    coordinator.request(messages.Suspend(client="b"))
    wait_until(lambda: not a.control.budget_rate)


def test_client_without_turns_has_the_reason(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    coordinator = idle_coordinator.start(quantum=20)
    a = processes("a")

    def reasons() -> list[str]:
        client = coordinator.client("a") or {}
        check("Client", client)
        return [limit["reason"] for limit in client["limits"]]

    assert reasons() == []
    with lock_as_other_coordinator():
        a.start_waiting()
        wait_until(lambda: reasons() == ["other_coordinator"])
        text = (coordinator.client("a") or {})["limit_text"]
        assert text == "no turn: a client of another coordinator has its device"
        coordinator.request(messages.Suspend(client="a"))
        assert reasons() == ["suspended"]
        assert (coordinator.client("a") or {})["limit_text"] == "no turn: it is suspended"
    coordinator.request(messages.Resume(client="a"))
    wait_until(lambda: reasons() == [])


def test_each_limit_has_the_time_of_its_begin() -> None:
    """A limit that ends and begins again has a new time, and so has a limit in favour of other clients."""
    now = 100.0
    times = LimitTimes(lambda: now)
    suspended, share = ("suspended", ()), ("share", ("b",))
    assert times.update([suspended]) == {suspended: 100.0}
    now = 107.04
    assert times.update([suspended, share]) == {suspended: 100.0, share: 107.0}
    assert times.update([share]) == {share: 107.0}
    now = 110.0
    assert times.update([suspended, ("share", ("c",))]) == {suspended: 110.0, ("share", ("c",)): 110.0}


def test_memory_above_the_resident_quota_is_a_limit(
    idle_coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    coordinator = idle_coordinator.start(quantum=20)
    coordinator.request(messages.Register(client="a", token="secret", quota="resident=1GiB"))
    a = processes("a")
    a.allocate(1 << 30)
    assert (coordinator.client("a") or {})["limits"] == []
    a.allocate(2 << 30)
    wait_until(lambda: (coordinator.client("a") or {})["limits"])
    client = coordinator.client("a") or {}
    check("Client", client)
    assert client["limit_text"] == "at most 1 GiB of its memory stays on the GPU: resident in its quota"
    assert [limit["text"] for limit in client["limits"]] == [client["limit_text"]]


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (
            {"reason": "packing", "loss": 0.166, "rate": None},
            "no turn beside b, c: together they did 16.6 % less work than in turns",
        ),
        (
            {"reason": "online_first", "rate": None},
            "no turn: an online client has its device, and online clients go first",
        ),
        ({"reason": "short_of_room", "rate": None}, "no turn: memory of another client cannot leave its device"),
        (
            {"reason": "time_limit", "rate": None},
            "no turn: it has run for as long as the limit of its quota allows so far",
        ),
        (
            {"reason": "takeover", "rate": None},
            "no turn: its memory does not fit beside that of an online client, which would lose too much time",
        ),
        (
            {"reason": "spilled", "rate": 300 << 20, "unit": "turn_bytes"},
            "at most 300 MiB of its memory on the GPU in its turns: the memory of online clients stays",
        ),
        (
            {"reason": "adaptive", "rate": 1200, "unit": "blocks", "loss": 0.0123},
            "at most 1,200 blocks/s: the speed of b, c is kept (1.23 % slower than without offline clients)",
        ),
    ],
)
def test_a_limit_names_what_was_measured(limit: dict[str, Any], text: str) -> None:
    whole = {"unit": None, "colocated_with": ["b", "c"], "loss": None} | limit
    assert launch_limits.describe_limit(whole, str) == text


@pytest.mark.parametrize(
    ("rate", "unit", "reason", "text"),
    [
        (
            0.5,
            "device_seconds",
            "surplus",
            "50 % of the device's time: its share and idle time, colocated with b, c",
        ),
        (1, "blocks", "measuring", "1 block/s: the speed of b, c without offline clients is measured first"),
        (1200, "blocks", "adaptive", "1,200 blocks/s: the speed of b, c is kept"),
    ],
)
def test_each_launch_rule_has_its_text(rate: float, unit: str, reason: str, text: str) -> None:
    limit = {"rate": rate, "unit": unit, "reason": reason, "colocated_with": ["b", "c"], "loss": None}
    assert launch_limits.describe_limit(limit, str) == f"at most {text}"


def test_label_of_a_colocated_client_is_visible_to_the_owner_of_both() -> None:
    clients = [
        {"id": "a", "label": "a.ipynb", "user": "me", "limits": [SHARE | {"colocated_with": ["b", "c", "d"]}]},
        {"id": "b", "label": "b.ipynb", "user": "me", "limits": []},
        {"id": "c", "label": "c.ipynb", "user": "ann", "limits": []},
    ]
    views = SnapshotEncoder({"devices": [], "clients": clients, "coordinator": {}}, {"a": ME, "b": ME, "c": "4242"})

    def visible_text(user: str, admin: bool) -> str:
        first, *_ = msgspec.json.decode(views.for_user(Identity(user, admin, 1, int(user))))["clients"]
        return str(first["limit_text"]).partition("colocated with ")[2]

    assert visible_text(ME, admin=False) == "b.ipynb, a client of ann, another client"
    for admin in (False, True):
        assert visible_text("4242", admin) == "a client of me, a client of ann, another client"
