"""Tests of the environment that a shared kernel gets."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.launch import kernel_env


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create fake native libraries in a folder whose name has a space and a colon."""
    folder = tmp_path / "my: env"
    (folder / "simcuda").mkdir(parents=True)
    (folder / "libgpushare.so").touch()
    (folder / "simcuda" / "libcuda.so.1").touch()
    monkeypatch.setattr(kernel_env, "SHIM", folder / "libgpushare.so")
    monkeypatch.setattr(kernel_env, "SIMULATED_DRIVER", folder / "simcuda" / "libcuda.so.1")
    return folder


def prepare(env: dict[str, str] | None = None, **changes: Any) -> dict[str, str]:
    arguments = {"client": "c1", "token": "secret", "socket": "/nowhere/c.sock", **changes}
    return kernel_env.build_environment(env or {}, **arguments)


def test_identity_goes_into_the_environment(native: Path) -> None:
    made = prepare(label="a.ipynb", quota="share=0.5")
    assert made["GPUSHARE_CLIENT"] == made["GPUSHARE_PREPARED"] == "c1"
    assert made["GPUSHARE_TOKEN"] == "secret"
    assert made["GPUSHARE_SOCKET"] == "/nowhere/c.sock"
    assert (made["GPUSHARE_LABEL"], made["GPUSHARE_QUOTA"]) == ("a.ipynb", "share=0.5")
    assert "coordinator" in json.loads(made["GPUSHARE_COORDINATOR_ARGV"])


def test_values_of_the_user_remain(native: Path) -> None:
    user = {
        "LD_PRELOAD": "libjemalloc.so:/opt/a.so libb.so",
        "CUDA_VISIBLE_DEVICES": "1",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "PYTHONSTARTUP": "/home/user/startup.py",
        "HOME": "/home/user",
    }
    made = prepare(user, visible_devices=["GPU-0"])
    assert made["LD_PRELOAD"].split()[1:] == ["libjemalloc.so", "/opt/a.so", "libb.so"]
    assert made["LD_PRELOAD"].split()[0].endswith("libgpushare.so")
    assert made["CUDA_VISIBLE_DEVICES"] == "1"
    assert made["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"
    assert made["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert made["GPUSHARE_STARTUP_CHAIN"] == "/home/user/startup.py"
    assert made["PYTHONSTARTUP"] == str(kernel_env.STARTUP)
    assert made["HOME"] == "/home/user"
    assert "GPUSHARE_PREPARED" not in user


def test_devices_are_set_only_without_the_users_choice(native: Path) -> None:
    """The variable GPUSHARE_DEVICES marks a choice of placement, which the shim may renew at the first CUDA call."""
    made = prepare(visible_devices=["GPU-0", "GPU-1"])
    assert made["CUDA_VISIBLE_DEVICES"] == made["GPUSHARE_DEVICES"] == "GPU-0,GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in prepare()
    for choice in ("", "1"):
        own = prepare({"CUDA_VISIBLE_DEVICES": choice}, visible_devices=["GPU-0"])
        assert own["CUDA_VISIBLE_DEVICES"] == choice
        assert "GPUSHARE_DEVICES" not in own


def test_another_client_inside_a_kernel_gets_devices_of_its_own(native: Path) -> None:
    outer = prepare(visible_devices=["GPU-0"])
    inner = prepare(outer, client="c2", token="other", visible_devices=["GPU-1"])
    assert inner["CUDA_VISIBLE_DEVICES"] == inner["GPUSHARE_DEVICES"] == "GPU-1"
    assert not {"CUDA_VISIBLE_DEVICES", "GPUSHARE_DEVICES"} & prepare(outer, client="c2", token="other").keys()
    outer["CUDA_VISIBLE_DEVICES"] = "0"  # by the user, in the kernel
    inner = prepare(outer, client="c2", token="other", visible_devices=["GPU-1"])
    assert inner["CUDA_VISIBLE_DEVICES"] == "0"


def test_preparing_twice_changes_nothing(native: Path) -> None:
    once = prepare({"LD_PRELOAD": "liba.so", "PYTHONSTARTUP": "/s.py"}, simulate=True)
    assert prepare(once, simulate=True, label="other", quota="share=1") == once


def test_a_kernel_started_from_a_shared_kernel_is_another_client(native: Path) -> None:
    user = {"LD_PRELOAD": "liba.so", "PYTHONSTARTUP": "/s.py", "LD_LIBRARY_PATH": "/lib/a"}
    outer = prepare(user, simulate=True, label="outer", quota="share=0.5", note="unreachable: no")
    inner = prepare(outer, client="c2", token="other", simulate=True)
    assert (inner["GPUSHARE_CLIENT"], inner["GPUSHARE_TOKEN"]) == ("c2", "other")
    assert not {"GPUSHARE_LABEL", "GPUSHARE_QUOTA", "GPUSHARE_NOTE"} & set(inner)
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONSTARTUP", "GPUSHARE_STARTUP_CHAIN"):
        assert inner[name] == outer[name]


def test_link_replaces_a_path_that_the_loader_would_split(native: Path, own_host: Path) -> None:
    made = prepare(simulate=True, socket=str(own_host / "run" / "gpushare" / "c.sock"))
    for value in (made["LD_PRELOAD"], made["LD_LIBRARY_PATH"]):
        assert not set(value) & set(" :;")
    assert os.path.realpath(made["LD_PRELOAD"]) == str(native / "libgpushare.so")
    assert os.path.realpath(made["LD_LIBRARY_PATH"]) == str(native / "simcuda")
    assert Path(made["LD_PRELOAD"]).parent == own_host / "run" / "gpushare"


def test_the_link_follows_a_package_that_moved(native: Path, own_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = str(own_host / "run" / "gpushare" / "c.sock")
    link = Path(prepare(socket=socket)["LD_PRELOAD"])
    link.unlink()
    link.symlink_to("/gone")
    assert Path(prepare(socket=socket)["LD_PRELOAD"]).resolve() == native / "libgpushare.so"


def test_missing_shim_leaves_the_kernel_unshared_with_a_warning(native: Path) -> None:
    (native / "libgpushare.so").unlink()
    made = prepare({"LD_PRELOAD": "liba.so"}, note="unreachable: a less important note")
    assert made["LD_PRELOAD"] == "liba.so"
    assert "GPUSHARE_CLIENT" not in made and "GPUSHARE_TOKEN" not in made
    assert made["GPUSHARE_NOTE"].startswith("unshared: ") and "libgpushare.so" in made["GPUSHARE_NOTE"]
    assert made["PYTHONSTARTUP"] == str(kernel_env.STARTUP)  # shows the note to the user


def test_other_languages_get_no_python_startup(native: Path) -> None:
    made = prepare(python=False)
    assert "PYTHONSTARTUP" not in made and made["GPUSHARE_CLIENT"] == "c1"


def test_the_simulated_driver_comes_first(native: Path) -> None:
    made = prepare({"LD_LIBRARY_PATH": "/lib/a:/lib/b"}, simulate=True)
    first, *rest = made["LD_LIBRARY_PATH"].split(":")
    assert os.path.realpath(first) == str(native / "simcuda") and rest == ["/lib/a", "/lib/b"]
    assert made["GPUSHARE_SIMULATE"] == "1"
    assert "--simulate" in json.loads(made["GPUSHARE_COORDINATOR_ARGV"])


def test_missing_simulated_driver_is_reported(native: Path) -> None:
    (native / "simcuda" / "libcuda.so.1").unlink()
    assert "simulated driver" in prepare(simulate=True)["GPUSHARE_NOTE"]


def test_the_label_is_the_notebooks_name_without_its_folder() -> None:
    env = {"JPY_SESSION_NAME": "/home/ada/secret project/train.ipynb"}
    assert kernel_env.label_of(env, "python3") == "train.ipynb"
    assert kernel_env.label_of({}, "python3") == "python3"


def test_ids_have_only_allowed_characters() -> None:
    one, other = kernel_env.Identity.new("a/b c"), kernel_env.Identity.new(prefix="run")
    assert one.client == "a-b-c" and other.client.startswith("run-")
    assert one.token != other.token and len(one.token) >= 32
