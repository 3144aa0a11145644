"""The package in a folder of its own, as users' pods have it: nothing is installed in their image."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.build_wheel import Environment
from .test_manifests import SINGLEUSER

pytestmark = pytest.mark.timeout(300)  # the wheel is built, and installed
MOUNTED = "/opt/gpushare"


def test_a_folder_that_is_mounted_is_as_good_as_an_installation(wheel: Path, tmp_path: Path) -> None:
    image = Environment(tmp_path / "image")
    assert image.offered_kernels() == {"python3"}
    place = image.folder / "gpushare"
    image.run_checked("pip", "install", "--no-index", "--no-deps", "--target", str(place), str(wheel))
    extra = {name: value for name, value in SINGLEUSER["extraEnv"].items() if value.startswith(MOUNTED)}
    assert set(extra) == {"PYTHONPATH", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"}
    variables = {name: value.replace(MOUNTED, str(place)) for name, value in extra.items()}
    assert image.offered_kernels(**variables) == {"python3", "python3-gpushare"}  # so its provisioner is found too
    assert (place / "etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json").exists()
    assert (place / "share/jupyter/labextensions/jupyter-gpushare/package.json").exists()
    shim = image.run_checked("jupyter_gpushare.launcher", "--", "printenv", "LD_PRELOAD", **variables)
    assert shim.strip() == str(place / "jupyter_gpushare/native/libgpushare.so")
