"""Tests of the metrics of a coordinator: the server, the values, and the documentation of each metric."""

from __future__ import annotations

import json
import re
import signal
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

import jupyter_gpushare
from jupyter_gpushare.coordinator.transport.peer_identity import Identity
from jupyter_gpushare.coordinator.views.metrics_server import MAX_THREADS
from jupyter_gpushare.coordinator.views.snapshot_visibility import SnapshotEncoder
from jupyter_gpushare.metrics import prometheus
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.address import BadAddress, MetricsAddress, metrics_address
from jupyter_gpushare.wire.page import CLOSING, IN

from ..support.ports import free_port
from .conftest import CoordinatorProcess, ProcessFactory
from .protocol_process import DEADLINE_SECONDS, UUID, wait_until

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = Path(jupyter_gpushare.__file__).parent / "share" / "grafana" / "gpushare.json"


def http(
    where: str | tuple[str, int], request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
) -> tuple[bytes, str]:
    """Send an HTTP request and return the status line and the body of the response."""
    family = socket.AF_UNIX if isinstance(where, str) else socket.AF_INET
    with closing(socket.socket(family)) as connection:
        connection.settimeout(DEADLINE_SECONDS)
        connection.connect(where)
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], body.decode()


def samples(body: str) -> dict[tuple[str, ...], float]:
    """Return the samples by name and values of the labels, in the order of the labels."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(body)
        for sample in family.samples
    }


@pytest.fixture
def exposed(idle_coordinator: CoordinatorProcess, folder: Path, processes: ProcessFactory) -> Iterator[str]:
    """Provide the metrics of a coordinator on which a has had a turn, b has one, and c waits."""
    path = str(folder / "m.sock")
    idle_coordinator.start(f"--GpuShare.metrics=unix:{path}")
    a, b, c = processes("a"), processes("b"), processes("c")
    a.run_turn()
    b.start_waiting()
    a.wait_phase(CLOSING)
    wait_until(lambda: (idle_coordinator.client("b") or {})["wait_seconds"] > 0.1)
    a.report.evicted_bytes = 5 << 20
    a.drain()
    b.wait_phase(IN)
    c.start_waiting()
    idle_coordinator.status()
    wait_until(lambda: [value for key, value in samples(http(path)[1]).items() if "_waits_total" in key[0]] == [3])
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o660
    yield http(path)[1]
    idle_coordinator.stop(signal.SIGTERM)
    assert not Path(path).exists()


def test_metrics_report_turns_and_waits(exposed: str) -> None:
    found = samples(exposed)
    (user,) = {key[-1] for key in found if key[0] == "gpushare_turns_total"}
    assert found["gpushare_turns_total", UUID, "", user] == 2
    assert found["gpushare_waits_total", UUID, "", user] == 3
    assert found["gpushare_evicted_bytes_total", UUID, "", user] == 5 << 20
    assert found["gpushare_gpu_seconds_total", UUID, "", user] > 0.1
    assert found["gpushare_wait_seconds_total", UUID, "", user] > 0.1
    assert (found["gpushare_wait_duration_seconds_count",], found["gpushare_switch_seconds_count",]) == (2, 1)
    assert found["gpushare_device_queue_length", "Simulated GPU", UUID] in (0, 1)
    assert found["gpushare_overruns_total",] == found["gpushare_coordinator_problems",] == 0


def everything() -> dict[str, Any]:
    """Return a snapshot with all fields of which metrics are made."""
    device = {
        "uuid": "u",
        "name": "n",
        "memory_total": 1,
        "memory_used": 1,
        "utilisation": 0.5,
        "grants": [],
        "queue": [],
    }
    figures = (
        "gpu_seconds",
        "busy_seconds",
        "wait_seconds",
        "waits",
        "turns",
        "evicted_bytes",
        "restored_bytes",
        "orphans",
    )
    coordinator: dict[str, Any] = {"uptime_seconds": 1, "refused": {"invalid": 1}}
    coordinator |= {name: {"buckets": [1], "seconds": 0.1} for name in ("drains", "waits", "switches")}
    coordinator["usage"] = [{"user": "ada", "tenant": None, "device": "u", **dict.fromkeys(figures, 1)}]
    return {
        "devices": [{**device, "foreign_processes": [{"pid": 1, "memory": 1}]}],
        "clients": [],
        "coordinator": coordinator,
    }


def test_every_metric_is_documented_and_exported(exposed: str) -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    documented = set(re.findall(r"^\| `(gpushare_\w+)` \|", text, re.M))
    named = {
        f.name + ("_total" if f.type == "counter" else "") for f in prometheus.server_metrics({"": everything()}, {})
    }
    assert named == documented
    exported_names = {f.name for f in text_string_to_metric_families(exposed)}
    assert exported_names == {f.name for f in prometheus.snapshot_metrics(everything())}


def test_foreign_processes_are_counted() -> None:
    status = everything()
    foreign = [{"pid": 1, "user": "ada", "memory": 5}, {"pid": None, "user": None, "memory": None}]
    status["devices"][0]["foreign_processes"] = foreign
    values = {
        family.name: [sample.value for sample in family.samples] for family in prometheus.snapshot_metrics(status)
    }
    assert values["gpushare_device_foreign_processes"] == [2]
    assert values["gpushare_device_foreign_memory_bytes"] == [5]


def test_context_memory_of_a_device_is_exported() -> None:
    status = everything()
    status["devices"][0]["context_memory"] = 104 << 20
    (sample,) = (
        one
        for family in prometheus.snapshot_metrics(status)
        for one in family.samples
        if one.name == "gpushare_device_context_memory_bytes"
    )
    assert (sample.labels, sample.value) == ({"uuid": "u", "name": "n"}, 104 << 20)


def test_limits_have_client_unit_reason_and_begin() -> None:
    limit = {"rate": 0.3, "unit": "device_seconds", "reason": "share", "since": 20.5}
    older = limit | {"rate": 9.0, "unit": "blocks", "since": 17.5}
    no_turn = {"rate": None, "unit": None, "reason": "suspended", "since": 12.0}
    status = everything() | {"clients": [{"id": "a", "phase": "running", "limits": [no_turn, limit, older]}]}
    families = {family.name: family.samples for family in prometheus.snapshot_metrics(status)}
    assert [(sample.labels, sample.value) for sample in families["gpushare_limit"]] == [
        ({"client": "a", "unit": "device_seconds", "reason": "share"}, 0.3),
        ({"client": "a", "unit": "blocks", "reason": "share"}, 9.0),
    ]
    assert [(sample.labels, sample.value) for sample in families["gpushare_limited_since_timestamp_seconds"]] == [
        ({"client": "a", "reason": "suspended"}, 12.0),
        ({"client": "a", "reason": "share"}, 17.5),
    ]


def test_loss_of_online_clients_is_exported() -> None:
    limit = {"rate": 100, "unit": "blocks", "reason": "adaptive", "loss": 0.02, "since": 1.0}
    packing = {"rate": None, "unit": None, "reason": "packing", "loss": 0.4, "since": 1.0}
    status = everything() | {"clients": [{"id": "a", "phase": "running", "limits": [packing, limit]}]}
    (sample,) = (
        one
        for family in prometheus.snapshot_metrics(status)
        for one in family.samples
        if one.name == "gpushare_online_loss_ratio"
    )
    assert (sample.labels, sample.value) == ({"client": "a"}, 0.02)


def test_dashboard_queries_existing_metrics() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    exported = {sample.name for family in prometheus.snapshot_metrics(everything()) for sample in family.samples}
    for query in queries:
        names = re.findall(r"gpushare_\w+", query)
        assert names and set(names) <= exported, query
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_metrics_have_no_notebook_names(idle_coordinator: CoordinatorProcess, folder: Path) -> None:
    path = str(folder / "m.sock")
    idle_coordinator.start(f"--GpuShare.metrics=unix:{path}")
    idle_coordinator.request(messages.Register(client="secret-client", token="t", label="diary.ipynb"))
    with pytest.raises(Exception, match="does not match"):
        idle_coordinator.request(messages.Register(client="secret-client", token="wrong"))
    _, body = http(path)
    assert samples(body)["gpushare_refused_messages_total", "forbidden"] == 1
    assert "diary" not in body and "secret-client" not in body


def test_metrics_server_survives_bad_and_slow_requests(idle_coordinator: CoordinatorProcess) -> None:
    where = ("127.0.0.1", free_port())
    idle_coordinator.start(f"--GpuShare.metrics=127.0.0.1:{where[1]}")
    assert http(where)[0].endswith(b" 200 OK")
    assert http(where, b"GET /metrics?x=1 HTTP/1.0\r\n\r\n")[0].endswith(b" 200 OK")
    assert http(where, b"POST /metrics HTTP/1.0\r\n\r\n")[0].endswith(b" 405 Method Not Allowed")
    assert b"gpushare" not in http(where, b"\0\xff\r\n\r\n")[0]
    with suppress(ConnectionResetError):
        assert b" 414 " in http(where, b"GET /" + b"x" * 100000)[0]
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(where)) for _ in range(40)]
        for one in slow:
            one.setblocking(False)
        # More slow connections than threads are not served.
        wait_until(lambda: sum(_ended(one) for one in slow) >= len(slow) - MAX_THREADS)
    wait_until(lambda: http(where)[0].endswith(b" 200 OK"))


def _ended(connection: socket.socket) -> bool:
    """Send a byte, without which the server ends a connection after some seconds, and return whether it has ended."""
    try:
        connection.send(b"G")
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def test_a_port_that_is_taken_is_a_warning(idle_coordinator: CoordinatorProcess, processes: ProcessFactory) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        idle_coordinator.start(f"--GpuShare.metrics=127.0.0.1:{port}")
        (problem,) = idle_coordinator.status()["coordinator"]["problems"]
        assert f"metrics are not served at 127.0.0.1:{port}" in problem and "in use" in problem
        processes("a").run_turn()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("127.0.0.1:9400", MetricsAddress("", "127.0.0.1", 9400)),
        ("localhost:9400", MetricsAddress("", "127.0.0.1", 9400)),
        ("[::1]:9400", MetricsAddress("", "::1", 9400)),
        ("unix:/run/m.sock", MetricsAddress("/run/m.sock")),
        ("open:0.0.0.0:9400", MetricsAddress("", "0.0.0.0", 9400)),
        ("open:[::]:9400", MetricsAddress("", "::", 9400)),
    ],
)
def test_valid_metrics_addresses_are_parsed(written: str, meant: MetricsAddress) -> None:
    assert metrics_address(written) == meant


@pytest.mark.parametrize(
    "written", ["0.0.0.0:9400", "[::]:9400", "192.0.2.1:9400", "example.org:80", ":80", "1:2:3", "x", "1:70000"]
)
def test_metrics_address_is_local_by_default(written: str) -> None:
    with pytest.raises(BadAddress, match="allowed"):
        metrics_address(written)


def test_subscriber_gets_its_own_usage_only() -> None:
    rows = [{"user": "root"}, {"user": "ada"}]
    status: dict[str, Any] = {"devices": [], "clients": [], "coordinator": {"usage": rows}}
    assert (
        msgspec.json.decode(SnapshotEncoder(status, {}).for_user(Identity("0", True, 1, 0)))["coordinator"]["usage"]
        == rows[:1]
    )
    assert status["coordinator"]["usage"] == rows
