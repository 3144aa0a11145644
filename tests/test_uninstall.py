"""What `pip uninstall` leaves behind: nothing that doesn't start."""

from __future__ import annotations

from pathlib import Path

import pytest

from .packages import Environment

pytestmark = pytest.mark.timeout(300)  # the wheel is built, and packages are installed


@pytest.fixture
def environment(wheel: Path, tmp_path: Path) -> Environment:
    made = Environment(tmp_path / "env")
    made.must("pip", "install", "--no-index", "--no-deps", str(wheel))
    return made


def test_nothing_is_left_once_variants_are_removed_and_the_package_is(environment: Environment) -> None:
    """As docs/how-to/upgrades.md says. Also variants of the same name in several places."""
    environment.must("jupyter_gpushare", "kernelspec", "install", "--sys-prefix")
    environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "mine", "--memory", "8GiB")
    for place in ("--sys-prefix", "--user"):
        environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "twice", place)
    assert {"python3-gpushare", "mine", "twice"} <= environment.kernels()
    environment.must("jupyter_gpushare", "kernelspec", "remove", "--all")
    environment.must("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.traces() == []
    assert environment.kernels() == {"python3"}


def test_who_forgets_the_variants_is_offered_none_that_would_not_start(environment: Environment) -> None:
    environment.must("jupyter_gpushare", "kernelspec", "install", "--name", "mine")
    assert {"python3-gpushare", "mine"} <= environment.kernels()
    environment.must("pip", "uninstall", "--yes", "jupyter-gpushare")
    assert environment.traces() == ["share/jupyter/kernels/mine/kernel.json"]
    assert environment.kernels() == {"python3"}  # jupyter_client offers none whose provisioner is not there
    environment.must("jupyter_client.kernelspecapp", "remove", "-f", "mine")
    assert environment.traces() == []
