"""Tests of `state` and `state_text` of a client in the snapshot."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jupyter_gpushare.coordinator.views import client_fields
from jupyter_gpushare.core.base.memory_use import MemoryUse
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.handlers.idle_policy import IdleForecast
from jupyter_gpushare.core.state.model import Client, Grant

from ..core.simulated_host import host_of

HOLDS = {"hold_until": 9.0, "cells_since": 1.0}
SUSPENDED = {"suspended": True, "suspended_by_policy": True}
SOON, WARNED = IdleForecast(60.0, 5.0, None, True), IdleForecast(60.0, None, None, True)
MEMORY = {"memory_use": MemoryUse(1, 1, 0)}


@pytest.mark.parametrize(
    ("known", "grant", "prospect", "state", "text"),
    [
        ({}, None, None, "idle", "idle"),
        ({"devices": ()}, None, None, "unused", "idle · has not used the GPU yet"),
        ({}, None, SOON, "idle_warned", "idle for long"),
        (MEMORY, None, WARNED, "idle_warned", "idle for long"),
        ({}, None, WARNED, "idle", "idle"),
        ({"evicted_by_policy": True}, None, WARNED, "idle_evicted", "idle, moved off · memory comes back with"),
        ({"waiting_since": 1.0}, None, None, "waiting", "#2 in queue"),
        ({}, {}, None, "running", "running"),
        (HOLDS, {}, None, "held", "held"),
        ({**HOLDS, "cells": {"1"}}, {}, None, "running", "running"),
        ({}, {"closing_since": 1.0}, None, "draining", "turn ending"),
        ({}, {"overrun_since": 1.0}, None, "overrun", "turn overrun · work or memory has not left the GPU"),
        ({"suspended": True}, None, None, "suspended", "suspended · GPU calls wait until it is resumed"),
        (SUSPENDED, None, None, "idle_suspended", "suspended, idle · the next cell or GPU call resumes it"),
    ],
)
def test_every_state_has_its_text(
    known: dict[str, Any], grant: dict[str, Any] | None, prospect: IdleForecast | None, state: str, text: str
) -> None:
    client = Client("a", "ann", "a.ipynb", Quota(), 1, 0, **{"devices": ("d",), "cells_since": -math.inf, **known})
    if grant is not None:
        client.grant = Grant(client, 1, ("d",), 0.0, **grant)
    fields = client_fields.state_fields(client, 2, prospect, 2.0)
    assert fields["state"] == state and fields["state_text"].startswith(text)


@pytest.mark.parametrize(("unmet", "text"), [(1, "waiting for room · other"), (0, "running")])
def test_a_turn_without_room_for_its_memory_has_a_text_of_its_own(unmet: int, text: str) -> None:
    host = host_of("gpu")
    host.add_process("a", waiting=True)
    host.report_memory("a", 800, 300, unmet_bytes=unmet)
    client = host.scheduler.clients["a"]
    assert client.grant
    assert client_fields.state_fields(client, None, None, host.now)["state_text"].startswith(text)


def test_a_move_shows_the_new_device() -> None:
    client = Client("a", "ann", "a.ipynb", Quota(), 1, 0, devices=("d", "e"), waiting_since=1.0)
    text = client_fields.state_fields(client, 1, None, 2.0, "device 1 (H200)")["state_text"]
    assert text == "moving · to device 1 (H200)"


def test_without_a_place_in_the_queue_it_waits() -> None:
    client = Client("a", "ann", "a.ipynb", Quota(), 1, 0, devices=("d",), waiting_since=1.0)
    assert client_fields.state_fields(client, None, None, 2.0) == {"state": "waiting", "state_text": "waiting"}
