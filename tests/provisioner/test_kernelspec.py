"""Tests of `jupyter gpushare kernelspec`, for shared variants of kernels in any language."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare import launcher
from jupyter_gpushare.cli import kernelspec

from ..support.command import run_command

# This kernel in another language writes its environment to a file and ends.
OTHER = {
    "argv": ["sh", "-c", "env > $0; echo $$ >> $0", "{resource_dir}/env.txt", "{connection_file}"],
    "display_name": "Other 1.0",
    "language": "other",
    "interrupt_mode": "message",
    "env": {"OTHER_HOME": "/opt/other"},
    "metadata": {"debugger": True, "supported_encryption": ["curve"]},
}


@pytest.fixture
def other(jupyter: Path) -> Path:
    folder = jupyter / "other"
    folder.mkdir()
    (folder / "kernel.json").write_text(json.dumps(OTHER))
    (folder / "logo-svg.svg").write_text("<svg/>")
    return folder


command = functools.partial(run_command, "kernelspec")


def test_variant_keeps_the_fields_of_the_original(other: Path, tmp_path: Path) -> None:
    options = ["--gpus", "2", "--memory", "8GiB", "--memory-mode", "plain"]
    done = command("install", "--kernel", "other", "--prefix", str(tmp_path / "p"), *options)
    assert done.returncode == 0, done.stderr
    place = tmp_path / "p" / "share" / "jupyter" / "kernels" / "other-gpushare"
    made = json.loads((place / "kernel.json").read_text())
    options = ["--quota", "memory=8GiB", "--gpus", "2", "--memory-mode", "plain", "--"]
    assert made["argv"] == [sys.executable, "-c", launcher.START, *options, *OTHER["argv"]]
    assert made["display_name"] == "Other 1.0 (shared GPU)"
    for key in ("language", "interrupt_mode", "env"):
        assert made[key] == OTHER[key]
    assert made["metadata"]["debugger"] and made["metadata"]["supported_encryption"] == ["curve"]
    assert made["metadata"]["kernel_provisioner"] == {
        "provisioner_name": "gpushare-provisioner",
        "config": {"memory": "8GiB", "gpus": 2, "memory_mode": "plain"},
    }
    assert (place / "logo-svg.svg").read_text() == "<svg/>"
    assert json.loads((other / "kernel.json").read_text()) == OTHER


def test_a_variant_for_nodes_starts_the_original_command_there(other: Path, tmp_path: Path) -> None:
    options = ["--cluster", "--node", "gpu1", "--memory", "8GiB", "--prefix", str(tmp_path)]
    for kernel in ("other", "python3"):
        done = command("install", "--kernel", kernel, *options)
        assert done.returncode == 0, done.stderr
    kernels = tmp_path / "share" / "jupyter" / "kernels"
    made = json.loads((kernels / "other-gpushare-cluster" / "kernel.json").read_text())
    assert made["argv"] == OTHER["argv"]
    assert made["display_name"] == "Other 1.0 (shared GPU, cluster)"
    assert made["metadata"]["kernel_provisioner"] == {
        "provisioner_name": "gpushare-remote-provisioner",
        "config": {"memory": "8GiB", "node": "gpu1"},
    }
    python = json.loads((kernels / "python3-gpushare-cluster" / "kernel.json").read_text())
    assert python["argv"][0] == "python"


def test_variant_is_installed_listed_removed(other: Path) -> None:
    assert command("install", "--kernel", "other", "--user", "--display-name", "Mine").returncode == 0
    listed = json.loads(command("list", "--json").stdout)
    assert listed["other-gpushare"]["shared"] and listed["other-gpushare"]["variant_of"] == "other"
    assert not listed["other"]["shared"]
    assert "Mine" in command("list").stdout
    again = command("install", "--kernel", "other", "--user")  # replaces
    assert again.returncode == 0 and "Mine" not in command("list").stdout
    assert command("remove", "--kernel", "other").returncode == 0
    assert set(listed) - set(json.loads(command("list", "--json").stdout)) == {"other-gpushare"}


def test_variants_of_one_kernel_have_different_display_names(other: Path) -> None:
    """A user chooses a kernel by its display name, also where the variants differ in their quotas only."""
    assert command("install", "--kernel", "other", "--user", "--memory", "1GiB").returncode == 0
    assert command("install", "--kernel", "other", "--user", "--name", "big", "--memory", "8GiB").returncode == 0
    listed = command("list").stdout
    assert "Other 1.0 (shared GPU)  " in listed and "Other 1.0 (shared GPU, big)  " in listed
    again = command("install", "--kernel", "other", "--user", "--name", "third", "--display-name", "Other 1.0")
    assert "note: other has this display name too" in again.stdout


def test_variant_of_the_package_is_not_installed_again(other: Path) -> None:
    """The package has python3-gpushare, so `install` without options has nothing to do."""
    before = json.loads(command("list", "--json").stdout)
    assert before["python3-gpushare"]["variant_of"] == ""
    done = command("install")
    assert done.returncode == 0 and "already" in done.stdout
    assert json.loads(command("list", "--json").stdout) == before
    installed = command("install", "--user")  # in another folder
    assert installed.returncode == 0 and "already" not in installed.stdout


def test_kernel_of_the_package_is_not_replaced(other: Path, tmp_path: Path) -> None:
    """`remove --all` would remove a replaced kernel of the package as a variant."""
    folder = ("--prefix", str(tmp_path / "p"))
    packaged = tmp_path / "p" / "share" / "jupyter" / "kernels" / "python3-gpushare"
    shutil.copytree(other.parent / "python3-gpushare", packaged)
    before = (packaged / "kernel.json").read_text()
    refused = command("install", *folder, "--place", "exclusion=team")
    assert refused.returncode == 1 and "'python3-gpushare'" in refused.stderr and "--name" in refused.stderr
    usual = command("install", *folder)
    assert usual.returncode == 0 and f"{packaged} already" in usual.stdout
    assert (packaged / "kernel.json").read_text() == before
    done = command("install", *folder, "--name", "python3-team", "--place", "exclusion=team")
    assert done.returncode == 0, done.stderr
    assert (packaged.parent / "python3-team" / "kernel.json").exists()


def test_variants_of_other_names_remain_unless_named(other: Path) -> None:
    assert command("install", "--kernel", "other", "--user", "--name", "mine").returncode == 0
    refused = command("remove", "--kernel", "other")
    assert refused.returncode == 1 and "give the name of one of its variants: mine" in refused.stderr
    assert command("install", "--kernel", "other", "--user").returncode == 0
    done = command("remove", "--kernel", "other")
    assert done.returncode == 0 and "other variants of other remain: mine" in done.stdout
    assert {"mine", "other"} <= set(json.loads(command("list", "--json").stdout))
    assert command("remove", "--kernel", "mine").returncode == 0
    assert "mine" not in json.loads(command("list", "--json").stdout)


def test_all_kernels_at_once(other: Path) -> None:
    before = json.loads(command("list", "--json").stdout)
    unshared = {name for name, row in before.items() if not row["shared"]}
    assert "other" in unshared
    done = command("install", "--all", "--user")
    assert done.returncode == 0, done.stderr
    after = json.loads(command("list", "--json").stdout)
    assert {f"{name}-gpushare" for name in unshared} <= set(after)
    assert after["other-gpushare"]["variant_of"] == "other"
    assert "already" in command("install", "--all", "--user").stdout
    assert command("remove", "--all").returncode == 0
    assert set(json.loads(command("list", "--json").stdout)) == set(before)


@pytest.mark.parametrize(
    ("words", "status", "complaint"),
    [
        (["install", "--kernel", "nope", "--user"], 1, "no kernel 'nope'"),
        (["install", "--kernel", "python3-gpushare", "--user"], 1, "shared already"),
        (["install", "--kernel", "other", "--user", "--name", "other"], 1, "unshared kernel"),
        (["install", "--kernel", "other", "--user", "--name", "a b"], 1, "cannot be installed"),
        (["install", "--kernel", "other", "--user", "--share", "2"], 2, "from 0 to 1"),
        (["install", "--kernel", "other", "--user", "--gpus", "x"], 2, "'x' is not a whole number from 1 to 64"),
        (["install", "--kernel", "other", "--user", "--node", "gpu1"], 2, "it needs --cluster"),
        (["install", "--kernel", "other", "--user", "--cluster", "--node=-oX"], 2, "'-oX' is no name of a node"),
        (["install", "--kernel", "other", "--user", "--cluster", "--node="], 2, "'' is no name of a node"),
        (["install", "--all", "--user", "--name", "x"], 2, "they exclude --all"),
        (["remove", "--kernel", "other"], 1, "not a shared kernel, so it is not removed"),
        (["remove"], 2, "--kernel"),
        (["frobnicate"], 2, "install"),
    ],
)
def test_usage_errors_change_nothing(other: Path, words: list[str], status: int, complaint: str) -> None:
    before = command("list", "--json").stdout
    done = command(*words)
    assert done.returncode == status and complaint in done.stderr and "Traceback" not in done.stderr
    assert command("list", "--json").stdout == before


def test_a_kernel_of_another_provisioner_is_refused(other: Path) -> None:
    remote = {**OTHER, "metadata": {"kernel_provisioner": {"provisioner_name": "ssh-provisioner"}}}
    found = kernelspec.InstalledSpec("other", other, remote)
    with pytest.raises(kernelspec.KernelSpecError, match="ssh-provisioner"):
        kernelspec.make_variant(found, quota={})


def test_argv_starts_a_shared_kernel_without_the_provisioner(other: Path, coordinator: Any, tmp_path: Path) -> None:
    command("install", "--kernel", "other", "--prefix", str(tmp_path / "p"), "--share", "0.5")
    place = tmp_path / "p" / "share" / "jupyter" / "kernels" / "other-gpushare"
    argv = json.loads((place / "kernel.json").read_text())["argv"]
    words = [word.replace("{resource_dir}", str(tmp_path)).replace("{connection_file}", "c") for word in argv]
    process = subprocess.Popen(words, env=dict(os.environ))
    assert process.wait(60) == 0
    *lines, pid = (tmp_path / "env.txt").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if "=" in line)
    assert int(pid) == process.pid
    assert env["GPUSHARE_CLIENT"] in coordinator.clients()
    assert env["GPUSHARE_QUOTA"] == "share=0.5"
