"""Tests of the quota `resident` in a client's own turn, for memory that work reaches off the device."""

from __future__ import annotations

import pytest

from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.interface import commands as cmd
from jupyter_gpushare.core.interface import events as ev

from .simulated_host import SimulatedHost, host_of

GIB = 1 << 30  # memory of the device
LARGE = 3 * GIB // 4  # memory of a client
CONTEXT = GIB // 16


def host_with(can_spill: bool = True, **settings: object) -> SimulatedHost:
    host = host_of("gpu", **{"sharing": "auto", **settings})
    host.start_client("one")
    host.report_memory("one", LARGE, can_spill=can_spill)
    host.run(1)
    return host


def set_quota(host: SimulatedHost, resident: int | None) -> None:
    host.handle_event(ev.QuotaChanged("one", Quota(resident=resident)))


def limits(host: SimulatedHost) -> list[int | None]:
    return [command.bytes for command in host.commands if isinstance(command, cmd.SetTurnLimit)]


def test_the_quota_changes_within_a_turn() -> None:
    host = host_with()
    turn = host.scheduler.clients["one"].grant
    set_quota(host, GIB // 4)
    set_quota(host, GIB // 2)
    set_quota(host, None)
    host.run(1)
    assert limits(host) == [GIB // 4, GIB // 2, None]
    assert turn is host.scheduler.clients["one"].grant and turn is not None and not turn.is_draining


def test_the_quota_counts_no_context_memory() -> None:
    host = host_with()
    host.report_memory("one", LARGE, unmovable=CONTEXT, context=CONTEXT, can_spill=True)
    set_quota(host, GIB // 4)
    assert limits(host) == [GIB // 4 + CONTEXT]


def test_memory_that_work_cannot_reach_off_the_device_has_no_limit_in_a_turn() -> None:
    host = host_with(can_spill=False)
    set_quota(host, GIB // 4)
    assert limits(host) == []


@pytest.mark.parametrize("service", ["online", "offline"])
def test_another_client_runs_beside_the_memory_that_the_quota_allows(service: str) -> None:
    host = host_with()
    host.start_client("other", service=service)
    host.report_memory("other", LARGE)
    host.run(1)
    assert not host.phase("one") == host.phase("other") == "running"
    set_quota(host, GIB // 4)
    host.report_memory("one", LARGE, GIB // 4, can_spill=True)
    host.run_until(lambda: host.phase("one") == host.phase("other") == "running")
    assert not any(isinstance(command, cmd.SetResident) and command.bytes == 0 for command in host.commands)


def test_a_spilled_client_has_the_smaller_limit() -> None:
    host = host_of("gpu", sharing="auto")
    host.start_client("online")
    host.report_memory("online", LARGE - GIB // 8, can_spill=True)
    host.run(1)
    host.start_client("one", service="offline")
    host.report_memory("one", LARGE, 0, can_spill=True)
    host.run(1)
    (limit,) = limits(host)
    assert limit is not None and limit > GIB // 4
    host.handle_event(ev.QuotaChanged("one", Quota(service="offline", resident=GIB // 4)))
    assert limits(host)[1:] == [GIB // 4]
