"""Tests of moves under random faults, where the driver refuses each move after a random time.

Coordinators and processes are killed, stopped and disconnected while moves wait, as in every storm.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from jupyter_gpushare.agent.link import CONNECTED, Link
from jupyter_gpushare.coordinator.engine.move_executor import MoveExecutor
from jupyter_gpushare.core.base.device_info import DeviceInfo
from jupyter_gpushare.core.handlers.client_moves import ClientMoves
from jupyter_gpushare.core.interface import events as ev

from ..support.turn_audit import SimulatedClient
from ..support.virtual_clock import EventOwner
from .coordinator import CoordinatorUnderTest
from .episode import Episode
from .simulated_host import FaultHost

SEEDS = (9, 11, 30, 42)  # of hosts with several devices
MAX_REFUSAL_SECONDS = 2.0


class MovingUsers(EventOwner):
    """Users of a host who ask for moves of random clients to random devices."""

    def __init__(self, host: FaultHost, seed: int) -> None:
        super().__init__()
        self.host, self.random = host, Random(seed)
        self._ask()

    def _ask(self) -> None:
        host = self.host
        host.clock.schedule(host.clock.now + self.random.expovariate(2.0), self, self._ask)
        if host.clients and host.coordinator:
            client = self.random.choice(list(host.clients.values()))
            host.send_user_request(client, {"type": "move", "device": self.random.choice(host.devices)})


class EpisodeWithMoves(Episode):
    """Episode with clients of one process on one device, whose users also ask for moves."""

    def _make_host(self, folder: Path) -> FaultHost:
        host = super()._make_host(folder)
        start = host.start_coordinator

        def start_with_devices() -> CoordinatorUnderTest:
            """Start a coordinator that finds the devices itself, as by NVML."""
            coordinator = start()
            for uuid in host.devices:
                info = DeviceInfo(uuid, "Simulated GPU", host.memory)
                coordinator.engine.dispatcher.dispatch(ev.DeviceFound(info))
            return coordinator

        host.start_coordinator = start_with_devices  # type: ignore[method-assign]
        return host

    def _make_client(self, host: FaultHost, number: int) -> SimulatedClient:
        client = super()._make_client(host, number)
        client.devices, client.process_count = client.devices[:1], 1
        return client

    def _run_storms(self, host: FaultHost) -> None:
        self.users = MovingUsers(host, self.seed)
        super()._run_storms(host)

    def _calm(self, host: FaultHost) -> None:
        self.users.alive = False
        super()._calm(host)
        self.users = MovingUsers(host, self.seed)


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let processes refuse moves after a random time, and return the errors of moves that have ended."""
    ended: list[str] = []
    handle, fail = Link._handle_message, MoveExecutor.execute

    def refuse_later(self: Link, message: dict[str, Any], now: int) -> None:
        if message["type"] != "move":
            handle(self, message, now)
            return
        process: Any = self._process
        answer = {"type": "moved", "device": message["devices"][0], "error": "the driver refuses"}
        connection = self.connection
        delay = process.random.uniform(0.0, MAX_REFUSAL_SECONDS)

        def refuse() -> None:
            if self.state == CONNECTED and self.connection is connection:
                self.send(answer)

        process.clock.schedule(process.clock.now + delay, process, refuse)

    def record(self: MoveExecutor, command: Any, runtime: Any) -> None:
        ended.append(getattr(command, "error", ""))
        fail(self, command, runtime)

    monkeypatch.setattr(Link, "_handle_message", refuse_later)
    monkeypatch.setattr(MoveExecutor, "execute", record)
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_invariants_hold_while_moves_wait_and_are_refused(seed: int, moves: list[str]) -> None:
    outcome = EpisodeWithMoves(seed).run()
    assert not outcome.failure, outcome.failure
    assert any("the driver refuses" in error for error in moves)


@pytest.mark.slow
def test_a_lost_refusal_is_detected(moves: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClientMoves, "_on_move_ended", lambda self, event, now: None)
    assert "got no answer" in EpisodeWithMoves(SEEDS[0]).run().failure
