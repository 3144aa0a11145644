"""Tests that the results of a real coordinator have exactly the fields of `server/openapi.yaml`.

The devices and clients of `bench panel`, which stand for a coordinator's, have the same fields.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import jupyter_gpushare
from jupyter_gpushare.agent.lock_files import open_lock
from jupyter_gpushare.bench.support.synthetic_host import SyntheticHost
from jupyter_gpushare.coordinator.monitoring.foreign_processes import find_foreign
from jupyter_gpushare.settings import SETTINGS, schema
from jupyter_gpushare.settings.table import PUBLIC
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.page import IN

from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import UUID, wait_until

KEEPER = "import fcntl, signal; fcntl.flock(0, fcntl.LOCK_EX); print(flush=True); signal.pause()"
DESCRIPTION = Path(jupyter_gpushare.__file__).parent / "server" / "openapi.yaml"


def strict(schema: Any) -> Any:
    """Convert to a JSON schema in which each object has all its properties and no other.

    The Jupyter server adds further properties to the coordinator's.
    """
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: strict(value)
        for key, value in schema.items()
        if key != "nullable" and not (isinstance(value, dict) and value.get("x-added-by") == "server")
    }
    if made.get("type") == "object" and "properties" in made and "additionalProperties" not in made:
        made |= {"additionalProperties": False, "required": sorted(made["properties"])}
    return {"anyOf": [made, {"type": "null"}]} if schema.get("nullable") is True else made


def check(name: str, document: Any) -> None:
    components = strict(yaml.safe_load(DESCRIPTION.read_text())["components"])
    jsonschema.validate(document, {"$ref": f"#/components/schemas/{name}", "components": components})


@pytest.fixture
def busy(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> CoordinatorProcess:
    """Provide a coordinator with a running client that holds, a waiting client and an idle client."""
    coordinator = idle_coordinator.start("--GpuShare.idle_evict=100", "--GpuShare.idle_suspend=200", quantum=20)
    for name in ("runs", "waits", "idle"):
        quota = "memory=2GiB class=offline affinity=team"
        coordinator.request(messages.Register(client=name, token="secret", label=f"{name}.ipynb", quota=quota))
    runs, waits, idle = (processes(name) for name in ("runs", "waits", "idle"))
    processes.kernel("idle")
    idle.allocate(1 << 30)
    runs.run_turn()
    waits.start_waiting()
    coordinator.end_turn(runs)
    waits.wait_phase(IN)
    coordinator.request(messages.Hold(client="waits", seconds=300.0))
    runs.start_waiting()
    wait_until(lambda: coordinator.status()["devices"][0]["queue"])
    wait_until(lambda: (coordinator.client("idle") or {})["kernel_pids"])
    wait_until(lambda: coordinator.status()["coordinator"]["usage"])
    return coordinator


def test_a_snapshot(busy: CoordinatorProcess) -> None:
    status = wait_until(lambda: (one := busy.status())["devices"][0]["grants"] and one)
    clients = {client["id"]: client for client in status["clients"]}
    assert clients["idle"]["evicted_in"] and clients["waits"]["hold_seconds_left"] and clients["runs"]["queue_position"]
    check("Status", status)
    described = schema(SETTINGS[name] for name in PUBLIC)
    described["properties"]["devices_are_simulated"] = {"type": "boolean"}
    jsonschema.validate(status["config"], strict(described))
    for field in ("viewer", "coordinator"):
        broken = {**status, field: {**status[field], "more": 1}}
        with pytest.raises(jsonschema.ValidationError, match="'more' was unexpected"):
            check("Status", broken)


def test_device_with_foreign_processes(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    coordinator = idle_coordinator.start()
    process = processes("a")
    descriptor = open_lock(UUID)
    with subprocess.Popen([sys.executable, "-c", KEEPER], stdin=descriptor, stdout=subprocess.PIPE) as keeper:
        assert keeper.stdout and keeper.stdout.readline()
        process.start_waiting()
        device = wait_until(lambda: (one := coordinator.status()["devices"][0])["locked_by"] and one)
        keeper.kill()
    os.close(descriptor)
    device["foreign_processes"] = find_foreign({os.getpid(): 5, 1 << 30: None}, set())
    assert [one["pid"] for one in device["foreign_processes"]] == [os.getpid(), None]
    check("Device", device)


def test_history_and_usage(busy: CoordinatorProcess) -> None:
    history = busy.request(messages.History(after=0))
    assert {"idle", "running", "waiting", "draining"} <= {entry["what"] for entry in history["entries"]}
    check("History", history)
    usage = busy.request(messages.Usage(since=3600.0))
    assert usage["rows"]
    check("Usage", usage)


def test_devices_and_clients_of_the_panel_bench() -> None:
    status = SyntheticHost(clients=12, devices=2).snapshot()
    for device in status["devices"]:
        check("Device", device)
    for client in status["clients"]:
        check("Client", client)
