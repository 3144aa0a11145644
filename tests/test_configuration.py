"""Tests of the tables of settings: choices, explanations for admins, and the fields of a quota in all places."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import yaml

import jupyter_gpushare.server
from jupyter_gpushare import client_provisioner
from jupyter_gpushare.config.quota_options import PLACEMENT_OPTIONS
from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.core.base.quota import Quota
from jupyter_gpushare.core.placement.settings import STRATEGIES
from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.kernel.client_api import QUOTA_KEYS, WIRE_KEYS
from jupyter_gpushare.settings import SETTINGS
from jupyter_gpushare.settings.quota import QUOTA
from jupyter_gpushare.widgets.quota_form import QuotaForm
from jupyter_gpushare.wire.quotas import MEMORY_MODES


def test_choices_are_those_of_the_implementations() -> None:
    names = {"policy": POLICIES, "placement": STRATEGIES, "memory_mode": MEMORY_MODES}
    assert {setting: list(SETTINGS[setting].choices) for setting in names} == {
        setting: list(names_of_all) for setting, names_of_all in names.items()
    }


def test_every_setting_is_explained_to_admins() -> None:
    help_text = GpuShare.class_get_help()
    assert all(f"--GpuShare.{name}=" in help_text for name in SETTINGS)


ROOT = Path(__file__).parents[1]


def test_every_place_has_the_fields_of_a_quota() -> None:
    """Each place has a list of its own, because kernels import no settings."""
    openapi = yaml.safe_load(Path(jupyter_gpushare.server.__file__).with_name("openapi.yaml").read_text())
    protocol = (ROOT / "labextension/src/base/protocol.ts").read_text()
    interface = protocol.split("interface IQuota {")[1].split("}")[0]
    places = {
        "provisioner": set(client_provisioner._QUOTA) - set(PLACEMENT_OPTIONS),
        "kernel": {WIRE_KEYS.get(key, key) for key in QUOTA_KEYS},
        "core": {field.name for field in fields(Quota)},
        "widgets": set(QuotaForm().fields),
        "REST": set(openapi["components"]["schemas"]["Quota"]["properties"]),
        "JupyterLab": set(re.findall(r"readonly (\w+):", interface)),
    }
    assert places == {place: set(QUOTA) for place in places}
