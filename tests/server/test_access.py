"""Tests of access to the REST API: a missing token, and an authorizer that permits a part or nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tornado.httpclient import HTTPClientError
from traitlets.config import Config

CLIENT = "6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001"
READS = [("status",), ("config",), ("clients", CLIENT, "quota"), ("history",), ("usage",)]
WRITES = [
    ("PATCH", ("config",), {"time_quantum": 3}),
    ("PATCH", ("clients", CLIENT, "quota"), {"share": 0.5}),
    ("POST", ("clients", CLIENT, "release"), {}),
    ("POST", ("clients", CLIENT, "hold"), {}),
    ("POST", ("clients", CLIENT, "evict"), {}),
    ("POST", ("clients", CLIENT, "suspend"), {}),
    ("POST", ("clients", CLIENT, "resume"), {}),
]


@pytest.fixture
def jp_server_auth_resources(jp_server_auth_core_resources: dict[str, str]) -> dict[str, str]:
    return {**jp_server_auth_core_resources, "/gpushare/api/.*": "gpushare"}


@pytest.fixture
def permissions(monkeypatch: pytest.MonkeyPatch, jp_server_authorizer: Any) -> dict[str, Any]:
    """Return the permissions of every logged-in user, which a test can restrict."""
    allowed = {"actions": ["read", "write", "execute"], "resources": ["gpushare"]}
    monkeypatch.setattr(jp_server_authorizer, "permissions", allowed)
    return allowed


@pytest.fixture
def jp_server_config(jp_server_config: Config, jp_server_authorizer: Any, permissions: Any) -> Config:
    jp_server_config.ServerApp.authorizer_class = jp_server_authorizer
    return jp_server_config


@pytest.mark.parametrize("headers", [{"Authorization": ""}, {"Authorization": "token wrong"}])
async def test_without_a_token_nothing_is_served(
    refused: Any, coordinator: Any, jp_ws_fetch: Any, headers: Any
) -> None:
    for route in [*READS, ("kernels", "some"), ("events",), ("no", "such", "route")]:
        assert (await refused("GET", *route, headers=dict(headers)))[:2] == (403, "unauthenticated")
    for method, route, body in WRITES:
        assert (await refused(method, *route, body=body, headers=dict(headers)))[:2] == (403, "unauthenticated")
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch("gpushare", "api", "events", headers=dict(headers))
    assert caught.value.code == 403
    assert coordinator.pid == 0, "no request went to a coordinator"


async def test_all_permissions(api: Any, coordinator: Any, events: Any) -> None:
    """The fixture's authorizer asserts the action and the resource of each request."""
    await coordinator.start(CLIENT)
    for route in READS:
        await api("GET", *route)
    for method, route, body in WRITES:
        await api(method, *route, body=body)
    assert (await (await events())())["type"] == "snapshot"


async def test_reading_only(api: Any, refused: Any, coordinator: Any, permissions: Any, jp_ws_fetch: Any) -> None:
    await coordinator.start(CLIENT)
    permissions["actions"] = ["read"]
    before = await api("GET", "clients", CLIENT, "quota"), await api("GET", "config")
    for method, route, body in WRITES:
        refusal = await refused(method, *route, body=body)
        assert (refusal.status, refusal.reason) == (403, "forbidden")
        assert "write" in refusal.message
    assert (await api("GET", "clients", CLIENT, "quota"), await api("GET", "config")) == before
    with pytest.raises(HTTPClientError) as caught:
        await jp_ws_fetch("gpushare", "api", "events")
    assert caught.value.code == 403


async def test_permission_for_another_resource_is_refused(refused: Any, permissions: Any, coordinator: Any) -> None:
    permissions["resources"] = ["kernels"]
    for route in [*READS, ("kernels", "some")]:
        assert (await refused("GET", *route))[:2] == (403, "forbidden")
    assert coordinator.pid == 0
