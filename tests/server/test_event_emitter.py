"""Tests of Jupyter events about turns, queues and quotas: their way to a listener, and differences of snapshots."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jupyter_gpushare.server.event_emitter import SCHEMA_ID, EventEmitter, state_changes
from jupyter_gpushare.wire import messages

from ..coordinator.protocol_process import ProtocolProcess

KERNEL = "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001"


@pytest.fixture
def received(jp_serverapp: Any, extension: Any) -> list[dict[str, Any]]:
    """Return the list of emitted events."""
    events: list[dict[str, Any]] = []

    async def listen(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        events.append(dict(data))

    jp_serverapp.event_logger.add_listener(schema_id=SCHEMA_ID, listener=listen)
    return events


async def in_thread(function: Any, *arguments: Any) -> Any:
    """Run a function in a thread, while the server and its subscription continue."""
    return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)


async def test_turns_queues_and_quotas(
    received: list[dict[str, Any]], api: Any, extension: Any, coordinator: Any, wait_until: Any
) -> None:
    def find(transition: str, client: str) -> dict[str, Any] | None:
        """Return the first such event; a client of a busy host is queued for a moment before each turn."""
        return next((one for one in received if (one["transition"], one["client"]) == (transition, client)), None)

    await coordinator.start(KERNEL, "other")
    await api("GET", "status")
    # The server reports no change that is older than the first snapshot of its subscription.
    await wait_until(lambda: extension.supervisor.status, "the first snapshot")
    await api("PATCH", "clients", KERNEL, "quota", body={"memory": "1GiB"})
    changed = await wait_until(lambda: received and received[0], "the quota's event")
    assert (changed["transition"], changed["client"], changed["quota"]["memory"]) == ("quota_changed", KERNEL, 1 << 30)

    runs, waits = ProtocolProcess(coordinator.path, KERNEL), ProtocolProcess(coordinator.path, "other")
    try:
        for process in (runs, waits):
            await in_thread(process.send_hello)
        await in_thread(runs.run_turn)
        granted = await wait_until(lambda: find("granted", KERNEL), "the turn's event")
        assert granted["turns"] == 1
        assert granted["devices"] == list(runs.devices) and 0 <= granted["waited_seconds"] < 10
        await coordinator.request(messages.Config(changes={"sharing": "exclusive"}))
        waits.start_waiting()
        queued = await wait_until(lambda: find("queued", "other"), "the queue's event")
        assert queued["queue_position"] == 1
        assert not any("label" in event for event in received)
    finally:
        for process in (runs, waits):
            process.close()


def client(name: str, **changes: Any) -> dict[str, Any]:
    usual = {
        "user": "ada",
        "devices": ["GPU-1"],
        "quota": {},
        "turn_count": 0,
        "wait_seconds": 0.0,
        "queue_position": None,
    }
    return {"id": name, **usual, **changes}


def reported(before: dict[str, Any] | None, after: dict[str, Any]) -> list[tuple[str, Any]]:
    events = state_changes({"clients": [before] if before else []}, {"clients": [after]})
    return [(event["transition"], event.get("turns", event.get("queue_position"))) for event in events]


def test_each_transition_is_emitted_once() -> None:
    assert reported(client("a"), client("a")) == []
    assert reported(client("a", queue_position=2), client("a", queue_position=1)) == []
    assert reported(None, client("a", quota={"share": 1})) == []
    assert reported(None, client("a", turn_count=1)) == [("granted", 1)]
    assert reported(client("a", turn_count=3), client("a", turn_count=7)) == [("granted", 4)]
    again = client("a", turn_count=2, queue_position=1)
    assert reported(client("a", turn_count=1, queue_position=1), again) == [("granted", 1), ("queued", 1)]


def test_events_have_the_wait_for_each_turn() -> None:
    """The waits are also correct for a client that waits again at once, so that no snapshot shows its turn."""
    emitted: list[dict[str, Any]] = []

    class Logger:
        def register_event_schema(self, schema: Any) -> None: ...

        def emit(self, *, schema_id: str, data: dict[str, Any]) -> None:
            emitted.append(data)

    emitter = EventEmitter(Logger())  # type: ignore[arg-type]
    before = None
    for turns, waited, position in (
        (0, 0.0, None),
        (0, 2.0, 1),
        (1, 2.5, 1),
        (1, 4.0, 1),
        (2, 5.5, None),
        (3, 5.5, None),
    ):
        after = {"clients": [client("a", turn_count=turns, wait_seconds=waited, queue_position=position)]}
        emitter.on_snapshot(before, after)
        before = after
    assert [event["waited_seconds"] for event in emitted if event["transition"] == "granted"] == [2.5, 3.0, 0.0]
