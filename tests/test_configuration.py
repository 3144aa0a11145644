"""The tables of settings: names that other parts have as well."""

from __future__ import annotations

from jupyter_gpushare.config.traits import GpuShare
from jupyter_gpushare.core.placement.settings import STRATEGIES
from jupyter_gpushare.core.queueing.policies import POLICIES
from jupyter_gpushare.settings import SETTINGS
from jupyter_gpushare.wire.quotas import MEMORY_MODES


def test_choices_are_what_there_is() -> None:
    there_is = {"policy": POLICIES, "placement": STRATEGIES, "memory_mode": MEMORY_MODES}
    assert {name: list(SETTINGS[name].choices) for name in there_is} == {
        name: list(all) for name, all in there_is.items()
    }


def test_every_setting_is_explained_to_admins() -> None:
    help_text = GpuShare.class_get_help()
    assert all(f"--GpuShare.{name}=" in help_text for name in SETTINGS)
