"""Tests of the Python clients of the coordinator, blocking and asyncio, against a listener with scripted replies."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import (
    AsyncClient,
    Client,
    CoordinatorError,
    Unreachable,
    default_coordinator_argv,
    ensure_coordinator,
    ensure_coordinator_async,
)

from ..support.listener import Listener, reply

TIMEOUT = 60.0


@pytest.fixture
def folder(own_host: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="w-", dir=own_host))


@pytest.fixture
def listener(folder: Path) -> Iterator[Listener]:
    made = Listener(str(folder / "c.sock"))
    yield made
    made.close()


Ask = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def ask(request: pytest.FixtureRequest, listener: Listener) -> Ask:
    """Send one request over a connection of its own, with either client."""

    def blocking(message: Any, timeout: float = TIMEOUT) -> Any:
        with Client(listener.path, timeout) as client:
            return client.request(message)

    def with_asyncio(message: Any, timeout: float = TIMEOUT) -> Any:
        async def run() -> Any:
            client = await AsyncClient.connect(listener.path, TIMEOUT)
            try:
                return await client.request(message, timeout)
            finally:
                await client.close()

        return asyncio.run(run())

    return blocking if request.param == "blocking" else with_asyncio


class TestRequests:
    def test_requests_are_answered(self, listener: Listener, ask: Ask) -> None:
        listener.answer = lambda request: [reply(request, {"released": True})]
        assert ask(messages.Release(client="a")) == {"released": True}
        assert listener.requests[0]["type"] == "release"
        assert listener.requests[0]["client"] == "a"

    def test_doorbells_snapshots_and_answers_to_others_are_passed_over(self, listener: Listener, ask: Ask) -> None:
        noise = [b"\n\n", {"type": "snapshot", "status": {}}, {"type": "reply", "id": -1, "result": "theirs"}]
        listener.answer = lambda request: [*noise, reply(request, "mine")]
        assert ask(messages.Status()) == "mine"

    def test_refusals_carry_reason_and_message(self, listener: Listener, ask: Ask) -> None:
        listener.answer = lambda request: [
            {"type": "error", "id": request["id"], "reason": "conflict", "message": "too much"}
        ]
        with pytest.raises(CoordinatorError, match=r"^too much$") as error:
            ask(messages.Status())
        assert error.value.reason == "conflict"
        assert not isinstance(error.value, Unreachable)

    @pytest.mark.parametrize(
        "answers",
        [[None], [b"garbage\n"], [b'{"type":"reply"'], [{"type": "from the future", "id": 1}], [b"\xff\n"]],
        ids=["hangs up", "garbage", "half a line", "unknown type", "no text"],
    )
    def test_a_broken_connection_is_unreachable(self, listener: Listener, ask: Ask, answers: list[Any]) -> None:
        listener.answer = lambda request: [*answers, None]
        with pytest.raises(Unreachable) as error:
            ask(messages.Status())
        assert error.value.reason == "unreachable"
        assert listener.path in str(error.value)

    def test_silence_is_unreachable_after_the_timeout(self, listener: Listener, ask: Ask) -> None:
        listener.answer = lambda request: []
        with pytest.raises(Unreachable, match=r"did not answer within 0\.2 s"):
            ask(messages.Status(), timeout=0.2)

    def test_results_may_be_large(self, listener: Listener, ask: Ask) -> None:
        listener.answer = lambda request: [reply(request, "x" * 3_000_000)]
        assert len(ask(messages.Status())) == 3_000_000


def test_connect_without_a_listener_is_unreachable(folder: Path) -> None:
    path = str(folder / "none.sock")
    with pytest.raises(Unreachable, match=f"no coordinator answers at {path}"):
        Client(path)
    with pytest.raises(Unreachable, match=f"no coordinator answers at {path}"):
        asyncio.run(AsyncClient.connect(path))


def test_a_blocking_subscription(listener: Listener) -> None:
    snapshots = [{"type": "snapshot", "status": {"n": n}} for n in (1, 2)]
    listener.answer = lambda request: [reply(request, {"n": 0}), *snapshots, None]
    seen = []
    with Client(listener.path) as client, pytest.raises(Unreachable):
        for status in client.subscribe():
            seen.append(status["n"])
    assert seen == [0, 1, 2]


def run_async(listener: Listener, use: Callable[[AsyncClient], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        client = await AsyncClient.connect(listener.path)
        try:
            return await asyncio.wait_for(use(client), TIMEOUT)
        finally:
            await client.close()

    return asyncio.run(run())


def test_many_requests_at_once_get_their_own_answers(listener: Listener) -> None:
    held: list[dict[str, Any]] = []

    def answer(request: dict[str, Any]) -> list[Any]:
        held.append(request)
        return [reply(r, r["client"]) for r in reversed(held)] if len(held) == 10 else []

    listener.answer = answer

    async def use(client: AsyncClient) -> Any:
        return await asyncio.gather(*(client.request(messages.Release(client=f"c{n}")) for n in range(10)))

    assert run_async(listener, use) == [f"c{n}" for n in range(10)]


def test_all_that_wait_learn_that_the_connection_broke(listener: Listener) -> None:
    listener.answer = lambda request: [None] if request["client"] == "last" else []

    async def use(client: AsyncClient) -> Any:
        waiting = [asyncio.create_task(client.request(messages.Release(client=name))) for name in ("a", "b", "last")]
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        with pytest.raises(Unreachable):
            await client.request(messages.Status())
        return outcomes

    assert [type(outcome) for outcome in run_async(listener, use)] == [Unreachable] * 3


def test_a_slow_subscriber_sees_the_newest_only(listener: Listener) -> None:
    answered = threading.Event()

    def answer(request: dict[str, Any]) -> list[Any]:
        if request["type"] == "subscribe":
            return [reply(request, {"n": 0})]
        return [*({"type": "snapshot", "status": {"n": n}} for n in range(1, 50)), reply(request, "answer")]

    listener.answer = answer

    async def use(client: AsyncClient) -> Any:
        snapshots = client.subscribe()
        first = await anext(snapshots)
        assert await client.request(messages.Status()) == "answer"
        answered.set()
        return first["n"], (await anext(snapshots))["n"]

    assert run_async(listener, use) == (0, 49)


def test_a_subscription_ends_with_the_connection(listener: Listener) -> None:
    listener.answer = lambda request: [reply(request, {"n": 0}), None]

    async def use(client: AsyncClient) -> Any:
        return [status async for status in client.subscribe()]

    with pytest.raises(Unreachable, match="closed the connection"):
        run_async(listener, use)


class TestStartingOne:
    def argv(self, program: str) -> list[str]:
        return [sys.executable, "-c", program]

    def test_no_coordinator_is_started_if_one_accepts(self, listener: Listener) -> None:
        assert ensure_coordinator(listener.path, self.argv("raise SystemExit(3)")) == listener.path
        assert asyncio.run(ensure_coordinator_async(listener.path, self.argv("raise SystemExit(3)"))) == listener.path

    @pytest.mark.parametrize(
        ("program", "why"),
        [
            ("print('note', file=sys.stderr); sys.exit('no GPU, no idea')", "status 1: no GPU, no idea"),
            ("sys.exit(3)", "status 3: it printed no message"),
            ("sys.exit(' '.join(sys.argv[1:]))", "status 1: --socket {path}"),
        ],
    )
    def test_start_failure_has_its_reason(self, folder: Path, program: str, why: str) -> None:
        path = str(folder / "c.sock")
        for ensure in (ensure_coordinator, lambda *args: asyncio.run(ensure_coordinator_async(*args))):
            with pytest.raises(Unreachable, match=f"ended with {why.format(path=path)}"):
                ensure(path, self.argv(f"import sys; {program}"), TIMEOUT)

    def test_slow_coordinator_start_is_a_failure(self, folder: Path) -> None:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="did not start in time"):
            ensure_coordinator(str(folder / "c.sock"), self.argv("import time; time.sleep(600)"), wait=0.3)
        assert time.monotonic() - began < 60

    def test_missing_coordinator_command_is_a_failure(self, folder: Path) -> None:
        with pytest.raises(Unreachable, match="none can be started"):
            ensure_coordinator(str(folder / "c.sock"), ["/nonexistent/program"])

    def test_the_command_comes_from_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("GPUSHARE_COORDINATOR_ARGV", raising=False)
        assert default_coordinator_argv()[-2:] == ["coordinator", "--detach"]
        assert default_coordinator_argv(simulate=True)[-1] == "--simulate"
        monkeypatch.setenv("GPUSHARE_COORDINATOR_ARGV", '["my", "own"]')
        assert default_coordinator_argv(simulate=True) == ["my", "own"]
