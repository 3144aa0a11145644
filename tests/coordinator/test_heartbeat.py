"""What is done in slices, of many clients, in virtual time: the work of each second, and snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.coordinator import where
from jupyter_gpushare.coordinator.slices import AT_A_TIME
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

from ..hostile.edge import Correct, Edge
from ..hostile.virtual import VirtualLoop

MANY = 3 * AT_A_TIME


@pytest.fixture
def edge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Edge]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = Edge(VirtualLoop(), tmp_path)
    yield made
    made.close()


@pytest.fixture
def crowd(edge: Edge) -> Iterator[list[Correct]]:
    made = [Correct(edge, f"client-{number}", "GPU-shared") for number in range(MANY)]
    edge.pass_time(1.5)
    yield made
    edge.check()
    for one in made:
        one.close()


def test_who_speaks_meanwhile_does_not_wait_for_its_end(
    edge: Edge, crowd: list[Correct], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, asks = edge.daemon, edge.connect(0)
    touch, look_at = daemon.kept.touch, daemon.usage.look_at
    heard: list[int] = []  # lines, when a client was looked at

    def begins() -> None:
        touch()
        heard.clear()
        asks.send(encode(messages.Status()))

    def looks(*args: Any) -> None:
        heard.append(edge.lines)
        look_at(*args)

    monkeypatch.setattr(daemon.kept, "touch", begins)
    monkeypatch.setattr(daemon.usage, "look_at", looks)
    before = edge.lines
    edge.pass_time(1.0)
    assert len(heard) == len(crowd) and heard[-1] == before + 1
    asks.close()


def test_clients_that_leave_in_its_midst_are_not_looked_at(
    edge: Edge, crowd: list[Correct], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, look_at = edge.daemon, edge.daemon.usage.look_at
    looked: list[str] = []

    def looks(member: Any, now: float) -> None:
        if not looked:
            for one in crowd[AT_A_TIME:]:
                gone = daemon.members[one.client]
                gone.forgotten = True
                daemon.registry.leave(next(iter(gone.processes.values())))
        looked.append(member.client)
        look_at(member, now)

    monkeypatch.setattr(daemon.usage, "look_at", looks)
    monkeypatch.setattr(daemon.usage, "leave", lambda member, now: None)
    edge.pass_time(1.0)
    assert looked == [one.client for one in crowd[:AT_A_TIME]]


@pytest.mark.parametrize("part", ["kept.touch", "levels.measure", "driver.look", "outside.look"])
def test_a_part_at_fault_harms_no_other(
    edge: Edge, crowd: list[Correct], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    daemon = edge.daemon
    crowd[0].wants()
    edge.pass_time(0.1)
    owner, name = part.split(".")
    monkeypatch.setattr(getattr(daemon, owner), name, lambda *_: 1 / 0)
    for _ in range(2):
        before = daemon.usage.accounts.changes
        edge.pass_time(1.0)
        assert daemon.usage.accounts.changes > before
    assert caplog.text.count("ZeroDivisionError: ") == 1, "and not again"


def test_a_client_at_fault_harms_no_other(
    edge: Edge, crowd: list[Correct], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    looked: list[str] = []

    def looks(member: Any, _now: float) -> None:
        looked.append(member.client)
        if member.client == "client-0":
            raise ValueError

    with monkeypatch.context() as patch:
        patch.setattr(edge.daemon.usage, "look_at", looks)
        edge.pass_time(1.0)
    assert looked == [one.client for one in crowd]
    assert "bug: client-0; story:" in caplog.text and "ClientRegistered" in caplog.text


def test_a_snapshot_of_many_is_of_one_moment(edge: Edge, crowd: list[Correct], monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that the snapshot has looked at already begins to wait."""
    looked: list[str] = []

    def notes(_: Any, client: Any) -> list[str]:
        looked.append(client.id)
        if looked == [one.client for one in crowd[: AT_A_TIME + 1]]:
            crowd[0].wants()
        return []

    monkeypatch.setattr(where, "notes", notes)
    asks = edge.connect(0)
    asks.send(encode(messages.Status()))
    while (answer := asks.news()) is None:
        edge.handle()
    status = answer["result"]
    (device,) = status["devices"]
    assert len(status["clients"]) == len(crowd)
    assert device["queue"] == [crowd[0].client]
    assert [client["id"] for client in status["clients"] if client["phase"] == "waiting"] == [crowd[0].client]
    asks.close()
