"""Tests of work that the coordinator divides into chunks, in virtual time: the tasks of each second, and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jupyter_gpushare.coordinator.host.chunked_work import MAX_ITEMS
from jupyter_gpushare.coordinator.views import client_fields
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

from ..hostile.in_process_coordinator import InProcessCoordinator, WellBehavedClient

MANY = 3 * MAX_ITEMS


@pytest.fixture
def clients(in_process: InProcessCoordinator) -> Iterator[list[WellBehavedClient]]:
    made = [WellBehavedClient(in_process, f"client-{number}", "GPU-shared") for number in range(MANY)]
    in_process.pass_time(1.5)
    yield made
    in_process.check()
    for one in made:
        one.close()


def test_request_during_a_heartbeat_is_answered_before_its_end(
    in_process: InProcessCoordinator, clients: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, connection = in_process.coordinator, in_process.connect(0)
    refresh, sample_client = coordinator.settings_override.refresh, coordinator.usage.sample_client
    lines_read: list[int] = []  # number of handled lines at the sample of each client

    def refresh_and_request() -> None:
        refresh()
        lines_read.clear()
        connection.send(encode(messages.Status()))

    def sample(*args: Any) -> None:
        lines_read.append(in_process.lines)
        sample_client(*args)

    monkeypatch.setattr(coordinator.settings_override, "refresh", refresh_and_request)
    monkeypatch.setattr(coordinator.usage, "sample_client", sample)
    before = in_process.lines
    in_process.pass_time(1.0)
    assert len(lines_read) == len(clients) and lines_read[-1] == before + 1
    connection.close()


def test_clients_that_end_during_a_heartbeat_are_skipped(
    in_process: InProcessCoordinator, clients: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, sample_client = in_process.coordinator, in_process.coordinator.usage.sample_client
    sampled: list[str] = []

    def sample(runtime: Any, now: float) -> None:
        if not sampled:
            for one in clients[MAX_ITEMS:]:
                gone = coordinator.state.runtimes[one.client]
                gone.is_unregistered = True
                coordinator.registry.remove_process(next(iter(gone.processes.values())))
        sampled.append(runtime.client_id)
        sample_client(runtime, now)

    monkeypatch.setattr(coordinator.usage, "sample_client", sample)
    monkeypatch.setattr(coordinator.usage, "remove_client", lambda runtime, now: None)
    in_process.pass_time(1.0)
    assert sampled == [one.client for one in clients[:MAX_ITEMS]]


@pytest.mark.parametrize(
    "task",
    ["settings_override.refresh", "page_sync.update_estimates", "device_monitor.poll", "foreign_processes.sample"],
)
def test_failing_part_leaves_the_other_parts_working(
    in_process: InProcessCoordinator,
    clients: list[WellBehavedClient],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    task: str,
) -> None:
    coordinator = in_process.coordinator
    clients[0].start_waiting()
    in_process.pass_time(0.1)
    owner, name = task.split(".")
    monkeypatch.setattr(getattr(coordinator, owner), name, lambda *_: 1 / 0)
    for _ in range(2):
        before = coordinator.usage.accumulator.totals_version
        in_process.pass_time(1.0)
        assert coordinator.usage.accumulator.totals_version > before
    assert caplog.text.count("ZeroDivisionError: ") == 1, "the exception was logged more than once"


def test_failing_client_leaves_the_other_clients_working(
    in_process: InProcessCoordinator,
    clients: list[WellBehavedClient],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sampled: list[str] = []

    def sample(runtime: Any, _now: float) -> None:
        sampled.append(runtime.client_id)
        if runtime.client_id == "client-0":
            raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(in_process.coordinator.usage, "sample_client", sample)
        in_process.pass_time(1.0)
    assert sampled == [one.client for one in clients]
    assert "bug: client-0; event log:" in caplog.text and "ClientRegistered" in caplog.text


def test_snapshot_of_many_clients_is_consistent(
    in_process: InProcessCoordinator, clients: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client begins to wait after the snapshot has built its fields."""
    sampled: list[str] = []

    def notes(_: Any, client: Any) -> list[str]:
        sampled.append(client.id)
        if sampled == [one.client for one in clients[: MAX_ITEMS + 1]]:
            clients[0].start_waiting()
        return []

    monkeypatch.setattr(client_fields, "placement_notes", notes)
    connection = in_process.connect(0)
    connection.send(encode(messages.Status()))
    while (answer := connection.next_message()) is None:
        in_process.handle_pending()
    status = answer["result"]
    (device,) = status["devices"]
    assert len(status["clients"]) == len(clients)
    assert device["queue"] == [clients[0].client]
    assert [client["id"] for client in status["clients"] if client["phase"] == "waiting"] == [clients[0].client]
    connection.close()
