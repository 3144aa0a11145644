"""Tests of the files after `pip uninstall`: front ends offer no kernel that cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest

from .support.build_wheel import Environment

pytestmark = pytest.mark.timeout(300)  # a fixture builds the wheel, and tests install packages


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    made.run_checked("pip", "install", "--no-index", "--no-deps", str(wheel))
    return made


def test_nothing_is_left_once_variants_are_removed_and_the_package_is(environment: Environment) -> None:
    """docs/how-to/upgrades.md describes these steps. Variants may have the same name in several folders."""
    environment.run_checked("jupyter_gpushare", "kernelspec", "install", "--sys-prefix")
    environment.run_checked("jupyter_gpushare", "kernelspec", "install", "--name", "mine", "--memory", "8GiB")
    for option in ("--sys-prefix", "--user"):
        environment.run_checked("jupyter_gpushare", "kernelspec", "install", "--name", "twice", option)
    assert {"python3-gpushare", "mine", "twice"} <= environment.offered_kernels()
    environment.run_checked("jupyter_gpushare", "kernelspec", "remove", "--all")
    environment.run_checked("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.leftover_files() == []
    assert environment.offered_kernels() == {"python3"}


def test_leftover_kernel_variants_are_not_offered(environment: Environment) -> None:
    environment.run_checked("jupyter_gpushare", "kernelspec", "install", "--name", "mine")
    assert {"python3-gpushare", "mine"} <= environment.offered_kernels()
    environment.run_checked("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.leftover_files() == ["share/jupyter/kernels/mine/kernel.json"]
    assert environment.offered_kernels() == {"python3"}  # jupyter_client hides kernels without their provisioner
    environment.run_checked("jupyter_client.kernelspecapp", "remove", "-f", "mine")
    assert environment.leftover_files() == []
