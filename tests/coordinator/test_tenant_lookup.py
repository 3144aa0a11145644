"""Tests of TenantLookup: ceilings, the tenant of a user by name, uid and group, and refusals of invalid tenants."""

from __future__ import annotations

import grp
import os
import pwd
from typing import Any

import pytest

from jupyter_gpushare.coordinator.config.tenant_lookup import TenantLookup
from jupyter_gpushare.core.base.errors import Refused
from jupyter_gpushare.core.placement import Tenant

GIB = 1 << 30


def test_ceilings_with_units() -> None:
    (tenant,) = TenantLookup(
        {"lab": {"share": "150%", "limit": "0.5", "memory": "8GiB", "cells": {"socket": 1}}}
    ).tenants
    assert tenant == Tenant("lab", share=1.5, limit=0.5, memory=8 * GIB, cells={"socket": 1})


def test_users_are_found_by_name_uid_and_group() -> None:
    me = pwd.getpwuid(os.getuid())
    for values in (
        {"users": [me.pw_name]},
        {"users": [str(me.pw_uid)]},
        {"users": [me.pw_uid]},
        {"groups": [grp.getgrgid(me.pw_gid).gr_name]},
    ):
        assert TenantLookup({"other": {"users": ["unknown-user"]}, "mine": values}).tenant_of(str(me.pw_uid)) == "mine"


def test_tenant_by_user_precedes_group_and_default() -> None:
    me = pwd.getpwuid(os.getuid())
    group = grp.getgrgid(me.pw_gid).gr_name
    rest = {"rest": {"users": ["*"]}}
    assert (
        TenantLookup({"g": {"groups": [group]}, "u": {"users": [me.pw_name]}, **rest}).tenant_of(str(me.pw_uid)) == "u"
    )
    assert TenantLookup({**rest, "g": {"groups": [group]}}).tenant_of(str(me.pw_uid)) == "g"
    assert TenantLookup(rest).tenant_of("54321") == "rest"
    assert TenantLookup({"u": {"users": [me.pw_name]}}).tenant_of("54321") == ""
    assert TenantLookup({}).tenant_of(str(me.pw_uid)) == ""


@pytest.mark.parametrize(
    ("tenants", "message"),
    [
        ({"a": []}, r"tenant 'a': \[\] is not a dictionary: allowed is for example"),
        ({"a": {"users": "ada"}}, "tenant 'a': users='ada' is not a list of names"),
        ({"a": {"users": ["ada"]}, "b": {"users": ["ada"]}}, "tenant 'b': users has 'ada', which is in tenant 'a'"),
        ({"a": {"memory": "much"}}, "tenant 'a': memory: 'much' is not a size"),
        ({"a": {"limit": "2"}}, "tenant 'a': limit=2 is out of range"),
    ],
)
def test_invalid_tenants_are_refused_with_a_reason(tenants: dict[str, Any], message: str) -> None:
    with pytest.raises(Refused, match=message):
        TenantLookup(tenants)
