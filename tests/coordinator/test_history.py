"""Tests of the history of a coordinator: its entries, its bounds, and requests in parts."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from jupyter_gpushare.coordinator.monitoring import history
from jupyter_gpushare.coordinator.monitoring.history import History
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.state.model import Client, Grant
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode
from jupyter_gpushare.wire.page import CLOSING, IN

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import lock_as_other_coordinator, wait_until
from .test_documented_snapshot import check


def history_of(coordinator: CoordinatorProcess, after: int = 0, client: str = "") -> Any:
    return coordinator.request(messages.History(after=after, client=client))


def lane(result: Any, client: str) -> list[str]:
    return [entry["what"] for entry in result["entries"] if entry["client"] == client]


def test_history_has_every_turn(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    a, b = processes("a"), processes("b")
    a.run_turn()
    b.start_waiting()
    wait_until(lambda: "waiting" in lane(history_of(coordinator), "b"))
    coordinator.end_turn(a)
    b.wait_phase(IN)
    coordinator.end_turn(b)
    wait_until(lambda: lane(history_of(coordinator), "b")[-1] == "idle")
    result = history_of(coordinator)
    assert lane(result, "a") == ["idle", "waiting", "running", "draining", "idle"]
    assert lane(result, "b") == ["idle", "waiting", "running", "draining", "idle"]
    times = [entry["at"] for entry in result["entries"]]
    assert times == sorted(times) and times[-1] <= result["now"]


def test_end_of_a_known_cell_has_its_time_and_its_expectation(
    coordinator: CoordinatorProcess, processes: ProcessFactory
) -> None:
    """A cell is known by its text, or else by its ID."""
    coordinator.request(messages.Register(client="a", token="secret"))
    kernel = processes.kernel("a")
    for number, names in enumerate(
        ({"text_hash": "1"}, {"text_hash": "1", "cell_id": "c"}, {"text_hash": "2", "cell_id": "c"})
    ):
        for state in ("start", "end"):
            kernel.cell(state, str(number), **names)
    wait_until(lambda: lane(history_of(coordinator), "a").count("cell_ended") == 3)
    ends = [entry for entry in history_of(coordinator)["entries"] if entry["what"] == "cell_ended"]
    assert [(end.get("expected_seconds"), end.get("gpu_seconds")) for end in ends] == [(None, None), (0, 0), (0, 0)]


def test_held_turn_is_marked_until_the_hold_ends(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    def turns() -> list[str]:
        return [what for what in lane(history_of(coordinator), "a") if not what.startswith("cell")]

    coordinator.request(messages.Register(client="a", token="secret"))
    a = processes("a")
    kernel = processes.kernel("a")
    kernel.cell("start", "1")
    wait_until(lambda: "cell_started" in lane(history_of(coordinator), "a"))
    a.run_turn()
    coordinator.request(messages.Hold(client="a", seconds="5min"))
    assert turns()[-1] == "running", "a running cell counts as held"
    kernel.cell("end", "1")
    wait_until(lambda: turns()[-1] == "held")
    check("History", history_of(coordinator))
    kernel.cell("start", "2")
    wait_until(lambda: turns()[-1] == "running")
    kernel.cell("end", "2")
    wait_until(lambda: turns()[-1] == "held")
    coordinator.request(messages.Release(client="a"))
    a.wait_phase(CLOSING)
    assert turns() == ["idle", "waiting", "running", "held", "running", "held", "draining"]


@pytest.mark.parametrize(("observed_at", "cell"), [(40.0, False), (40.0, True), (25.0, True)])
def test_expired_hold_has_its_own_end_time(observed_at: float, cell: bool) -> None:
    recorded = History(0.0)
    client = Client("a", "1", "", Quota(), 1, 0, cells_since=5.0, hold_until=30.0)
    client.grant = Grant(client, 1, ("GPU-0",), 5.0)
    recorded.record("a", client, 10.0)
    assert recorded.holding_clients == {"a"}
    if cell:
        client.cells.add("1")
    recorded.record("a", client, observed_at)
    found = [(entry["at"], entry["what"]) for entry in recorded.entries_since(0, "", observed_at)["entries"]]
    cell_entries = [(observed_at, "cell_started")] if cell else []
    assert [one for one in found if one[1] == "cell_started"] == cell_entries
    assert [one for one in found if one[1] != "cell_started"] == [(10.0, "held"), (min(30.0, observed_at), "running")]
    assert recorded.holding_clients == set()


def test_cells_suspension_and_the_end_of_a_client(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    coordinator.request(messages.Register(client="a", token="secret"))
    kernel = processes.kernel("a")
    for state, request in (("start", "1"), ("start", "2"), ("end", "1"), ("end", "2"), ("start", "3")):
        kernel.cell(state, request)
    wait_until(lambda: lane(history_of(coordinator), "a").count("cell_started") == 2)
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.Resume(client="a"))
    kernel.close()
    coordinator.request(messages.Unregister(client="a"))
    wait_until(lambda: lane(history_of(coordinator), "a")[-1] == "gone")
    lane_of_a = lane(history_of(coordinator), "a")
    assert lane_of_a == [
        "idle", "cell_started", "cell_ended", "cell_started", "suspended", "idle", "cell_ended", "gone",
    ]  # fmt: skip


def test_history_is_requested_in_parts(coordinator: CoordinatorProcess) -> None:
    coordinator.request(messages.Register(client="a", token="secret"))
    first = history_of(coordinator)
    assert (lane(first, "a"), first["more"]) == (["idle"], False)
    assert history_of(coordinator, first["next"])["entries"] == []
    coordinator.request(messages.Suspend(client="a"))
    coordinator.request(messages.Register(client="b", token="secret"))
    then = history_of(coordinator, first["next"])
    assert [(entry["client"], entry["what"]) for entry in then["entries"]] == [("a", "suspended"), ("b", "idle")]
    only = history_of(coordinator, first["next"], "b")
    assert (lane(only, "b"), lane(only, "a"), only["next"]) == (["idle"], [], then["next"])
    # A number that only another coordinator can have used gives all entries.
    assert history_of(coordinator, then["next"] + 1000)["entries"]
    assert len({first["run"], then["run"], only["run"]}) == 1


def test_another_coordinator_has_another_history(coordinator: CoordinatorProcess) -> None:
    before = history_of(coordinator)["run"]
    coordinator.stop()
    coordinator.start()
    assert history_of(coordinator)["run"] != before


def test_history_omits_turns_that_never_began(coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    """Another user's coordinator has the device, so no process can use its permit."""
    with lock_as_other_coordinator():
        a = processes("a")
        a.start_waiting()
        wait_until(lambda: "waiting" in lane(history_of(coordinator), "a"))
        coordinator.request(messages.Release(client="a"))
        assert "running" not in lane(history_of(coordinator), "a")
    a.wait_phase(IN)
    assert lane(history_of(coordinator), "a") == ["idle", "waiting", "running"]


@dataclass
class FakeClient:
    """Client with the attributes that the history reads."""

    suspended: bool = False
    waiting_since: float | None = None
    cells: set[str] = field(default_factory=set)
    grant: None = None


def pages(recorded: History, now: float, client: str = "") -> list[dict[str, Any]]:
    """Return all entries, reply by reply, and check that each reply fits into a line."""
    found: list[dict[str, Any]] = []
    after = 0
    while True:
        result = recorded.entries_since(after, client, now)
        assert len(encode(messages.Reply(id=1, result=result))) <= messages.MAX_LINE
        found += result["entries"]
        after = result["next"]
        if not result["more"]:
            return found


def states(entries: list[dict[str, Any]]) -> dict[str, str]:
    """Return the last state of each client, as a front end computes it."""
    found: dict[str, str] = {}
    for entry in entries:
        if entry["what"] == "gone":
            found.pop(entry["client"], None)
        elif not entry["what"].startswith("cell"):
            found[entry["client"]] = entry["what"]
    return found


def test_dropped_entries_are_replaced_by_the_state_at_that_time(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = History(0.0)
    quiet, busy, gone = FakeClient(suspended=True, cells={"1"}), FakeClient(), FakeClient()
    for name, client in (("quiet", quiet), ("busy", busy), ("gone", gone)):
        recorded.record(name, client, 1.0)  # type: ignore[arg-type]
    recorded.record("gone", None, 2.0)
    for second in range(3, 2000):
        busy.waiting_since = second if second % 2 else None
        recorded.record("busy", busy, float(second))  # type: ignore[arg-type]
    result = recorded.entries_since(0, "", 2000.0)
    began = [entry for entry in result["entries"] if entry["at"] == result["entries"][0]["at"]]
    assert {(entry["client"], entry["what"]) for entry in began} >= {("quiet", "suspended"), ("quiet", "cell_started")}
    assert began[0]["at"] == pytest.approx(2000 - history.MAX_AGE_SECONDS, abs=1.1)
    assert all(entry["client"] != "gone" for entry in result["entries"])
    entries = pages(recorded, 2000.0)
    assert states(entries) == {"quiet": "suspended", "busy": "waiting"}
    assert len(entries) <= history.MAX_AGE_SECONDS + 4
    assert states(pages(recorded, 5000.0)) == states(entries), "states are lost when all entries are too old"


def test_history_is_bounded_and_sent_in_parts() -> None:
    recorded = History(0.0)
    name = "x" * 128
    client = FakeClient()
    for number in range(3 * history.MAX_ENTRIES):
        client.waiting_since = 0.0 if number % 2 else None
        recorded.record(name, client, number / 1000)  # type: ignore[arg-type]
    entries = pages(recorded, 60.0)
    assert len(entries) == history.MAX_ENTRIES + 1
    assert [entry["what"] for entry in entries[-2:]] == ["idle", "waiting"]
    whats = [entry["what"] for entry in entries]
    assert all(one != other for one, other in itertools.pairwise(whats)), "an entry is missing or repeated"
    assert pages(recorded, 60.0, "another client") == []
