"""Tests of the tables of settings: choices that equal the implementations, and explanations for admins."""

from __future__ import annotations

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.core.placement.settings import STRATEGIES
from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.settings import SETTINGS
from jupyter_gpushare.wire.quotas import MEMORY_MODES


def test_choices_are_those_of_the_implementations() -> None:
    names = {"policy": POLICIES, "placement": STRATEGIES, "memory_mode": MEMORY_MODES}
    assert {setting: list(SETTINGS[setting].choices) for setting in names} == {
        setting: list(all) for setting, all in names.items()
    }


def test_every_setting_is_explained_to_admins() -> None:
    help_text = GpuShare.class_get_help()
    assert all(f"--GpuShare.{name}=" in help_text for name in SETTINGS)
