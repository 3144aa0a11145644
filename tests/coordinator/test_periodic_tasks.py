"""Chunked work for many clients in virtual time: the tasks of each second, and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator.host.chunked_work import MAX_ITEMS
from jupyter_gpushare.coordinator.views import placement_fields
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

from ..hostile.in_process_coordinator import InProcessCoordinator, WellBehavedClient
from ..hostile.virtual_loop import VirtualLoop

MANY = 3 * MAX_ITEMS


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessCoordinator]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = InProcessCoordinator(VirtualLoop(), tmp_path)
    yield made
    made.close()


@pytest.fixture
def crowd(in_process: InProcessCoordinator) -> Iterator[list[WellBehavedClient]]:
    made = [WellBehavedClient(in_process, f"client-{number}", "GPU-shared") for number in range(MANY)]
    in_process.pass_time(1.5)
    yield made
    in_process.check()
    for one in made:
        one.close()


def test_request_during_a_heartbeat_is_answered_before_its_end(
    in_process: InProcessCoordinator, crowd: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, asks = in_process.coordinator, in_process.connect(0)
    touch, look_at = daemon.settings_override.refresh, daemon.usage.sample_client
    heard: list[int] = []  # number of handled lines at the sample of each client

    def begins() -> None:
        touch()
        heard.clear()
        asks.send(encode(messages.Status()))

    def looks(*args: Any) -> None:
        heard.append(in_process.lines)
        look_at(*args)

    monkeypatch.setattr(daemon.settings_override, "refresh", begins)
    monkeypatch.setattr(daemon.usage, "sample_client", looks)
    before = in_process.lines
    in_process.pass_time(1.0)
    assert len(heard) == len(crowd) and heard[-1] == before + 1
    asks.close()


def test_clients_that_end_during_a_heartbeat_are_skipped(
    in_process: InProcessCoordinator, crowd: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, look_at = in_process.coordinator, in_process.coordinator.usage.sample_client
    looked: list[str] = []

    def looks(member: Any, now: float) -> None:
        if not looked:
            for one in crowd[MAX_ITEMS:]:
                gone = daemon.runtimes[one.client]
                gone.is_unregistered = True
                daemon.registry.remove_process(next(iter(gone.processes.values())))
        looked.append(member.client_id)
        look_at(member, now)

    monkeypatch.setattr(daemon.usage, "sample_client", looks)
    monkeypatch.setattr(daemon.usage, "remove_client", lambda member, now: None)
    in_process.pass_time(1.0)
    assert looked == [one.client for one in crowd[:MAX_ITEMS]]


@pytest.mark.parametrize(
    "part",
    ["settings_override.refresh", "page_sync.update_estimates", "device_monitor.poll", "foreign_processes.sample"],
)
def test_failing_part_leaves_the_other_parts_working(
    in_process: InProcessCoordinator,
    crowd: list[WellBehavedClient],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    part: str,
) -> None:
    daemon = in_process.coordinator
    crowd[0].start_waiting()
    in_process.pass_time(0.1)
    owner, name = part.split(".")
    monkeypatch.setattr(getattr(daemon, owner), name, lambda *_: 1 / 0)
    for _ in range(2):
        before = daemon.usage.accumulator.totals_version
        in_process.pass_time(1.0)
        assert daemon.usage.accumulator.totals_version > before
    assert caplog.text.count("ZeroDivisionError: ") == 1, "the exception was logged more than once"


def test_failing_client_leaves_the_other_clients_working(
    in_process: InProcessCoordinator,
    crowd: list[WellBehavedClient],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    looked: list[str] = []

    def looks(member: Any, _now: float) -> None:
        looked.append(member.client_id)
        if member.client_id == "client-0":
            raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(in_process.coordinator.usage, "sample_client", looks)
        in_process.pass_time(1.0)
    assert looked == [one.client for one in crowd]
    assert "bug: client-0; event log:" in caplog.text and "ClientRegistered" in caplog.text


def test_snapshot_of_many_clients_is_consistent(
    in_process: InProcessCoordinator, crowd: list[WellBehavedClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client begins to wait after the snapshot has built its fields."""
    looked: list[str] = []

    def notes(_: Any, client: Any) -> list[str]:
        looked.append(client.id)
        if looked == [one.client for one in crowd[: MAX_ITEMS + 1]]:
            crowd[0].start_waiting()
        return []

    monkeypatch.setattr(placement_fields, "placement_notes", notes)
    asks = in_process.connect(0)
    asks.send(encode(messages.Status()))
    while (answer := asks.next_message()) is None:
        in_process.handle_pending()
    status = answer["result"]
    (device,) = status["devices"]
    assert len(status["clients"]) == len(crowd)
    assert device["queue"] == [crowd[0].client]
    assert [client["id"] for client in status["clients"] if client["phase"] == "waiting"] == [crowd[0].client]
    asks.close()
