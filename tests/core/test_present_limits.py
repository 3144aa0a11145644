"""Tests of the limits that hold a client back at a time, with their reasons, in virtual time."""

from __future__ import annotations

import math

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import events as ev
from jupyter_gpushare.core.views.present_limits import Limit, present_limits

from .conftest import MakeHost
from .device_locks import OTHER_USER
from .simulated_host import SimulatedHost

GIB = 1 << 30  # memory of the device
WINDOW = 0.02  # seconds


def limits(host: SimulatedHost, name: str) -> list[Limit]:
    return list(present_limits(host.scheduler, host.scheduler.clients[name], host.now, WINDOW))


def reasons(host: SimulatedHost, name: str) -> list[str]:
    return [limit.reason for limit in limits(host, name)]


def test_a_client_that_runs_alone_or_only_waits_for_its_turn_has_no_limit(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.run(0.5)
    assert limits(host, "a") == []
    host.add_process("b", busy=True)
    assert (limits(host, "a"), limits(host, "b")) == ([Limit("others_wait", WINDOW, "queued_seconds")], [])


def test_a_suspended_client_has_no_other_reason(host: SimulatedHost) -> None:
    host.start_client("a", limit=0.1)
    host.run(60)
    host.handle_event(ev.SuspendRequested("a"))
    assert limits(host, "a") == [Limit("suspended")]
    host.handle_event(ev.ResumeRequested("a"))
    assert "suspended" not in reasons(host, "a")


def test_a_client_that_has_reached_its_time_limit_has_the_reason_until_it_may_run(host: SimulatedHost) -> None:
    process = host.start_client("a", limit=0.1)
    host.run_until(lambda: host.phase("a") == "waiting", 60)
    assert limits(host, "a") == [Limit("time_limit")]
    host.stop_waiting(process)
    assert limits(host, "a") == [], "without a wait the client needs no turn"
    host.wait_at_gate(process)
    host.run_until(lambda: host.phase("a") == "running", 60)
    assert limits(host, "a") == []


def test_an_offline_client_that_waits_for_the_budget_of_an_online_one_has_the_reason(host: SimulatedHost) -> None:
    host.add_process("online", busy=True)
    host.start_client("offline", service="offline")
    client = host.scheduler.clients["offline"]
    client.takeover_at = host.now + 10
    assert limits(host, "offline") == [Limit("takeover")]
    client.takeover_at = -math.inf
    assert limits(host, "offline") == [Limit("online_first")], "online clients go first without a budget too"
    client.quota = Quota()
    assert limits(host, "offline") == [], "an online client waits for no budget"


def test_a_client_whose_device_belongs_to_another_coordinator_has_the_reason(host: SimulatedHost) -> None:
    host.lock_by_other("gpu")
    host.add_process("a", busy=True)
    host.run(1)
    assert OTHER_USER in host.locks.holders("gpu")
    assert limits(host, "a") == [Limit("other_coordinator")]
    host.unlock_by_other("gpu")
    host.run(1)
    assert limits(host, "a") == []


def test_a_client_without_room_beside_memory_that_cannot_leave_has_the_reason(host: SimulatedHost) -> None:
    host.add_process("a", busy=True)
    host.report_memory("a", 3 * GIB // 4, unmovable=3 * GIB // 4)
    host.add_process("b", busy=True)
    host.report_memory("b", GIB // 2, 0)
    host.run(3)
    assert reasons(host, "b") == ["short_of_room"]


def test_an_offline_client_beside_an_online_one_has_its_rate_and_the_loss(make_host: MakeHost) -> None:
    host = make_host(sharing="auto")
    host.start_client("online")
    host.start_client("offline", service="offline")
    host.run(1)
    (limit,) = [one for one in limits(host, "offline") if one.unit == "blocks"]
    assert (limit.reason, limit.colocated_with) == ("measuring", ("online",))
    assert limit.rate is not None and limit.rate > 0


def test_a_spilled_client_has_its_turn_limit_while_it_runs(make_host: MakeHost) -> None:
    host = make_host(sharing="auto")
    host.start_client("online")
    host.report_memory("online", 5 * GIB // 8, can_spill=True)
    host.run(1)
    offline = host.start_client("offline", service="offline", busy=False)
    host.report_memory("offline", 5 * GIB // 8, 0, can_spill=True)
    host.wait_at_gate(offline)
    host.run(1)
    assert host.phase("offline") == "running"
    (limit,) = [one for one in limits(host, "offline") if one.reason == "spilled"]
    assert limit.unit == "turn_bytes" and 0 < (limit.rate or 0) < 3 * GIB // 8


@pytest.mark.parametrize(("context", "expected"), [(0, [Limit("resident", GIB // 4, "bytes")]), (GIB // 4, [])])
def test_allocations_above_the_resident_quota_are_a_limit(
    host: SimulatedHost, context: int, expected: list[Limit]
) -> None:
    host.start_client("a", busy=False, resident=GIB // 4)
    host.report_memory("a", GIB // 2, context=context)
    assert limits(host, "a") == expected
