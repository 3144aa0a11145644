"""Tests of the ceilings of tenants: share, limit, memory and number of clients."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_gpushare.core.base.errors import NoRoom, Refused
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.placement import Placement, PlacementRequest, PlacementSettings, Tenant
from jupyter_gpushare.core.placement.tenants import Tenants, tenant_from_mapping

from .placements import GIB, make_placement

STUDENTS = Tenant("students", share=1.5, limit=0.8, memory=20 * GIB, max_clients=3)
FITTING = Quota(limit=0.8, memory=20 * GIB)


@pytest.fixture
def placement() -> Placement:
    return make_placement(4, PlacementSettings(tenants=(STUDENTS,)))


def come(placement: Placement, client: str, tenant: str = "students", gpus: int = 1, **quota: Any) -> None:
    full_quota = Quota(**{"limit": 0.8, "memory": 20 * GIB, **quota})
    placement.place(
        client, PlacementRequest(gpus=gpus, share=full_quota.share, memory=full_quota.memory), tenant, full_quota
    )


def test_defaults_are_within_the_ceiling() -> None:
    assert Tenants([STUDENTS]).with_ceilings(Quota(), "students") == FITTING
    assert Tenants([STUDENTS]).with_ceilings(Quota(), "others") == Quota()


@pytest.mark.parametrize(
    ("quota", "message"),
    [
        ({"limit": 0.9}, "limit=0.9 is above that of tenant 'students': allowed is up to 0.8"),
        ({"memory": 21 * GIB}, "memory=21GiB is above that of tenant 'students': allowed is up to 20 GiB"),
        ({"memory": None}, "all of the device's memory is above"),
    ],
)
def test_no_client_is_above_its_tenants_ceiling(placement: Placement, quota: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        come(placement, "a", **quota)
    come(placement, "a")
    with pytest.raises(Refused, match=message):
        placement.change("a", PlacementRequest(), Quota(**{"limit": 0.8, "memory": 20 * GIB, **quota}))


def test_a_tenant_at_its_ceiling_may_wait_for_the_end_of_a_client(placement: Placement) -> None:
    for name in "abc":
        come(placement, name, share=0.5)
    with pytest.raises(NoRoom, match="has 3 clients"):
        come(placement, "d")
    placement.remove("a")
    with pytest.raises(NoRoom, match=r"share=0.8 .* allowed is up to 0.5"):
        come(placement, "d", share=0.8)
    with pytest.raises(Refused, match=r"share=0.8 of 2 devices") as refused:
        come(placement, "d", share=0.8, gpus=2)
    assert not isinstance(refused.value, NoRoom)


def test_shares_together_are_within_the_ceiling(placement: Placement) -> None:
    come(placement, "a", share=0.5, gpus=2)
    with pytest.raises(Refused, match=r"share=0.6 of 1 device .*: 1 of 1.5 are taken, allowed is up to 0.5"):
        come(placement, "b", share=0.6)
    come(placement, "b", share=0.5)
    placement.remove("a")
    placement.change("b", PlacementRequest(share=0.8, memory=1), Quota(share=0.8, limit=0.8, memory=1))


def test_the_number_of_clients_is_bounded(placement: Placement) -> None:
    for name in "abc":
        come(placement, name)
    with pytest.raises(Refused, match="tenant 'students' has 3 clients: allowed are 3; end one of them first"):
        come(placement, "d")
    come(placement, "d", tenant="")
    placement.remove("b")
    come(placement, "e")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shares": 1}, "unknown key 'shares': allowed are users, groups, share, limit, memory, max_clients, cells"),
        ({"share": "much"}, "share='much' is no number"),
        ({"share": -1}, "share=-1 is out of range: allowed is 0 or more"),
        ({"limit": 0}, "limit=0 is out of range"),
        ({"max_clients": 1.5}, "max_clients=1.5 is no whole number"),
        ({"memory": True}, "memory=True is no whole number"),
        ({"cells": {"rack": 1}}, "unknown cell level 'rack': allowed are device, switch, socket, node"),
        ({"cells": {"node": -1}}, "cells node=-1 is out of range"),
        ({"cells": {"node": "1"}}, "cells node='1' is no whole number"),
        ({"cells": 3}, "cells=3 is not an object"),
    ],
)
def test_invalid_tenant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=f"tenant 'x'.*{message}"):
        tenant_from_mapping("x", values)


def test_tenants_have_different_names() -> None:
    with pytest.raises(Refused, match="same name"):
        PlacementSettings(tenants=(Tenant("a"), Tenant("a")))
