"""Test of a package that is mounted as a folder, as in users' pods, where the image has no installation."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.build_wheel import Environment
from .test_manifests import SINGLEUSER

pytestmark = pytest.mark.timeout(300)  # a fixture builds the wheel, and the test installs it
MOUNTED = "/opt/gpushare"


def test_a_folder_that_is_mounted_is_as_good_as_an_installation(wheel: Path, tmp_path: Path) -> None:
    image = Environment(tmp_path / "image")
    assert image.offered_kernels() == {"python3"}
    folder = image.folder / "gpushare"
    image.run_checked("pip", "install", "--no-index", "--no-deps", "--target", str(folder), str(wheel))
    extra = {name: value for name, value in SINGLEUSER["extraEnv"].items() if value.startswith(MOUNTED)}
    assert set(extra) == {"PYTHONPATH", "JUPYTER_PATH", "JUPYTER_CONFIG_PATH"}
    variables = {name: value.replace(MOUNTED, str(folder)) for name, value in extra.items()}
    assert image.offered_kernels(**variables) == {"python3", "python3-gpushare"}  # so its provisioner is found too
    assert (folder / "etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json").exists()
    assert (folder / "share/jupyter/labextensions/jupyter-gpushare/package.json").exists()
    shim = image.run_checked("jupyter_gpushare.launcher", "--", "printenv", "LD_PRELOAD", **variables)
    assert shim.strip() == str(folder / "jupyter_gpushare/native/libgpushare.so")
