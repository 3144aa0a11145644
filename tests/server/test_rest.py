"""Tests of the routes of the REST API, with valid and invalid input."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tornado.httpclient import HTTPClientError

from jupyter_gpushare.cluster.channel.messages import NodeError
from jupyter_gpushare.cluster.node_connection import CONNECTIONS

CLIENT = "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001"


async def test_quota_is_read_and_changed(api: Any, refused: Any, coordinator: Any) -> None:
    client = "run:job.1@host"  # the id is escaped in addresses
    await coordinator.start(client)
    before = await api("GET", "clients", client, "quota")
    assert before["share"] == 0
    after = await api("PATCH", "clients", client, "quota", body={"share": 0.25, "memory": "8GiB"})
    assert after["share"] == 0.25
    refusal = await refused("PATCH", "clients", client, "quota", body={"limit": 0.5, "memory": "lots"})
    assert (refusal.status, refusal.reason) == (400, "invalid") and "lots" in refusal.message
    now = await api("GET", "clients", client, "quota")
    assert now == {**after, "schema": before["schema"]}
    jsonschema.validate(after, now["schema"])
    assert after["limit"] == before["limit"], "a part that the body lacks must not change"


async def test_actions_on_a_client(api: Any, refused: Any, coordinator: Any) -> None:
    await coordinator.start(CLIENT)
    held = await api("POST", "clients", CLIENT, "hold", body={"seconds": "5min"})
    assert held["running"] is False and 290 < held["hold_seconds_left"] <= 300
    longest = await api("POST", "clients", CLIENT, "hold", body="")
    assert 590 < longest["hold_seconds_left"] <= 600
    for action, answer in (
        ("release", {"released": True, "turn": False, "hold": True}),
        ("evict", {"evicting": False, "bytes": 0}),
        ("suspend", {"suspended": True, "changed": True}),
    ):
        assert await api("POST", "clients", CLIENT, action, body="") == answer
    assert (await refused("POST", "clients", CLIENT, "hold", body="")).status == 409
    assert await api("POST", "clients", CLIENT, "resume", body="") == {"suspended": False, "changed": True}


async def test_usage_is_served(api: Any, refused: Any, coordinator: Any) -> None:
    await coordinator.start(CLIENT)
    usage = await api("GET", "usage", params={"since": "12h"})
    assert (usage["rows"], usage["complete"]) == ([], True)
    assert 12 * 3600 <= usage["until"] - usage["since"] <= 13 * 3600
    wrong = await refused("GET", "usage", params={"since": "soon"})
    assert wrong.status == 400 and "since='soon' is neither a duration nor a date" in str(wrong)


async def test_settings_are_read_and_changed(api: Any) -> None:
    settings = await api("GET", "config")
    assert settings["time_quantum"] == "auto"
    jsonschema.validate(settings, settings["schema"])
    assert (await api("PATCH", "config", body={"time_quantum": 10}))["time_quantum"] == 10
    assert (await api("GET", "status"))["config"]["time_quantum"] == 10


@pytest.mark.parametrize("gpushare_settings", [{"simulate": True, "time_quantum": 7.0}])
async def test_the_servers_settings_apply_to_its_coordinator(api: Any) -> None:
    assert (await api("GET", "config"))["time_quantum"] == 7


@pytest.fixture(params=["jupyter_gpushare_config.py", "jupyter_server_config.py"])
def wrong_value(request: Any, own_host: Path, jp_environ: Any, jp_config_dir: Path, gpushare_settings: Any) -> None:
    """Write a wrong value into a file of Jupyter's configuration; the second file reaches the server as its `c`."""
    (jp_config_dir / request.param).write_text("c.GpuShare.policy = 'lifo'\n")
    if request.param == "jupyter_server_config.py":
        gpushare_settings["policy"] = "lifo"


@pytest.mark.usefixtures("wrong_value")
async def test_a_wrong_value_in_a_file_is_a_problem_that_the_server_shows(api: Any, events: Any) -> None:
    expected = "the server's settings are invalid, so the defaults apply: GpuShare.policy='lifo' is unknown"
    status = await api("GET", "status")
    assert status["coordinator"]["problems"][-1].startswith(expected)
    assert status["config"]["policy"] == "interactive"
    frame = await (await events())()
    assert frame["status"]["coordinator"]["problems"] == status["coordinator"]["problems"]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "7", '{"share": NaN}', '{"share": Infinity}', '{"a": [[1]]}', b'{"\xff": 1}', "[" * 9000]
)
@pytest.mark.parametrize("route", [("clients", CLIENT, "quota"), ("config",)])
async def test_malformed_bodies(refused: Any, coordinator: Any, route: tuple[str, ...], body: Any) -> None:
    refusal = await refused("PATCH", *route, body=body)
    assert (refusal.status, refusal.reason) == (400, "malformed")
    assert f'JSON object such as {{"{"share" if "quota" in route else "time_quantum"}": ' in refusal.message
    assert coordinator.pid == 0, "no request went to a coordinator"


async def test_too_long_body_is_refused(refused: Any) -> None:
    refusal = await refused("PATCH", "config", body=json.dumps({"policy": "x" * 20_000}))
    assert (refusal.status, refusal.reason) == (413, "too_large")


@pytest.mark.parametrize("client", ["nobody", "two words", "x" * 129, "a/b", "100%", "Grüße!"])
@pytest.mark.parametrize(
    ("method", "what"),
    [("GET", "quota"), ("PATCH", "quota"), ("POST", "release"), ("POST", "suspend"), ("POST", "evict")],
)
async def test_unknown_clients(refused: Any, client: str, method: str, what: str) -> None:
    client = client.replace("/", "%2F")
    refusal = await refused(method, "clients", client, what, body=None if method == "GET" else {"share": 0.5})
    assert (refusal.status, refusal.reason) == (404, "unknown_client")


async def test_unknown_routes_and_methods_are_refused_in_json(refused: Any) -> None:
    assert (await refused("GET", "statsu"))[:2] == (404, "unknown_route")
    assert (await refused("PATCH", "statsu", body="{}"))[:2] == (404, "unknown_route")
    assert (await refused("DELETE", "config"))[:2] == (405, "method_not_allowed")
    assert (await refused("GET", "events"))[:2] == (400, "invalid")


async def test_refused_method_lists_the_allowed_methods(jp_fetch: Any) -> None:
    for path, allowed in (("config", "GET, PATCH"), ("clients/c/hold", "POST"), ("events", "GET")):
        with pytest.raises(HTTPClientError) as caught:
            await jp_fetch("gpushare", "api", path, method="DELETE")
        assert caught.value.response and caught.value.response.headers["Allow"] == allowed


async def test_requests_do_not_count_as_activity(api: Any, jp_serverapp: Any) -> None:
    settings = jp_serverapp.web_app.settings
    before = settings.get("api_last_activity")
    await api("GET", "status")
    await api("PATCH", "config", body={"time_quantum": 5})
    assert settings.get("api_last_activity") == before


async def test_metrics(api: Any, jp_fetch: Any, coordinator: Any, extension: Any, wait_until: Any) -> None:
    async def readings() -> dict[tuple[str, str], float]:
        text = (await jp_fetch("metrics")).body.decode()
        assert "label of" not in text, "labels can be the paths of notebooks"
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(s.name, s.labels.get("uuid", s.labels.get("phase", ""))): s.value for s in samples}

    assert (await readings())["gpushare_coordinator_followed", ""] == 0
    await coordinator.start(CLIENT)
    device = (await api("GET", "status"))["devices"][0]
    await wait_until(lambda: extension.supervisor.status, "the first snapshot")
    found = await readings()
    assert found["gpushare_coordinator_followed", ""] == 1
    assert found["gpushare_clients", "idle"] == 1
    assert found["gpushare_device_memory_total_bytes", device["uuid"]] == device["memory_total"]
    assert found["gpushare_device_queue_length", device["uuid"]] == 0
    assert found["gpushare_drain_seconds_count", ""] == found["gpushare_drain_seconds_sum", ""] == 0


async def test_history(api: Any, refused: Any, coordinator: Any) -> None:
    await coordinator.start(CLIENT, "other")
    whole = await api("GET", "history")
    assert [entry["what"] for entry in whole["entries"]] == ["idle", "idle"]
    await api("POST", "clients", CLIENT, "suspend", body="")
    changes = await api("GET", "history", params={"after": whole["next"], "client": CLIENT})
    assert [(entry["client"], entry["what"]) for entry in changes["entries"]] == [(CLIENT, "suspended")]
    assert changes["run"] == whole["run"] and changes["now"] >= whole["now"] and not changes["more"]
    (device,) = (await api("GET", "status"))["devices"]
    assert changes["utilisation"].keys() == {device["uuid"]}
    for params in ({"after": "-1"}, {"after": "x"}, {"after": "1" * 30}):
        refusal = await refused("GET", "history", params=params)
        assert (refusal.status, refusal.reason) == (400, "invalid")


@pytest.mark.parametrize("reason", ["agent_ended", "engine_failed", "no_coordinator"])
async def test_a_node_that_is_lost_during_a_request_is_unreachable(
    refused: Any, extension: Any, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    class LostConnection:
        node = "gpu2"

        def request(self, message: Any) -> Future[Any]:
            answer: Future[Any] = Future()
            answer.set_exception(NodeError("the node agent on gpu2 has ended", reason))
            return answer

    monkeypatch.setattr(extension.kernels, "nodes", lambda: {"gpu2"})
    monkeypatch.setattr(CONNECTIONS, "present", lambda: [LostConnection()])
    expected = (503, "unreachable", "the node agent on gpu2 has ended")
    assert await refused("GET", "status", params={"node": "gpu2"}) == expected
