"""Tests of the results of `pip install`: the wheel, the sdist, and the native build."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import jupyter_gpushare

from .support.build_wheel import LABEXTENSION, ROOT, build_package

PACKAGE = ROOT / "jupyter_gpushare"
VERSION = jupyter_gpushare.__version__


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel without a compiler and without Node.js, and return the prefix."""
    prefix = tmp_path_factory.mktemp("prefix")
    # Without --ignore-installed, pip would uninstall the package from the environment that runs these tests.
    command = [sys.executable, "-m", "pip", "install", "--ignore-installed", "--no-deps", "--no-index"]
    command += ["--prefix", str(prefix)]
    environment = os.environ | {"PATH": str(tmp_path_factory.mktemp("empty")), "CC": "no-such-compiler"}
    result = subprocess.run([*command, str(wheel)], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return prefix


def test_wheel_is_for_any_python_on_this_platform(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"jupyter_gpushare-{VERSION}-py3-none-{platform}.whl"


def test_wheel_holds_all_modules_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*.py") if "labextension" not in path.parts}
    assert modules <= names
    assert {str(path.relative_to(ROOT)) for path in (PACKAGE / "share").rglob("*") if path.is_file()} <= names
    tops = {name.split("/")[0] for name in names}
    name = f"jupyter_gpushare-{VERSION}"
    assert tops == {"jupyter_gpushare", f"{name}.data", f"{name}.dist-info"}
    stray = [name for name in names if "/.build" in name or name.endswith((".c", ".o", ".pyc", ".map"))]
    assert stray == []


def test_installed_wheel_has_the_files_that_jupyter_requires(installed: Path) -> None:
    config = json.loads((installed / "etc/jupyter/jupyter_server_config.d/jupyter_gpushare.json").read_text())
    assert config["ServerApp"]["jpserver_extensions"] == {"jupyter_gpushare": True}

    spec = json.loads((installed / "share/jupyter/kernels/python3-gpushare/kernel.json").read_text())
    assert spec["metadata"]["kernel_provisioner"]["provisioner_name"] == "gpushare-provisioner"
    assert spec["argv"][0] == "python"  # jupyter_client replaces it by its own interpreter

    extension = installed / "share/jupyter/labextensions/jupyter-gpushare"
    package = json.loads((extension / "package.json").read_text())
    assert package["version"] == VERSION
    assert (extension / package["jupyterlab"]["_build"]["load"]).is_file()
    assert (installed / "bin/jupyter-gpushare").is_file()


@pytest.mark.parametrize("library", ["libgpushare.so", "libagent.so", "simcuda/libcuda.so.1"])
def test_libraries_need_only_the_c_library(installed: Path, library: str) -> None:
    """The libraries are preloaded into every child of a kernel, and loaded on hosts without CUDA."""
    (path,) = installed.rglob(f"jupyter_gpushare/native/{library}")
    listing = subprocess.run(["readelf", "-d", str(path)], capture_output=True, text=True, check=True).stdout
    needed = {line.split("[")[1].rstrip("]") for line in listing.splitlines() if "(NEEDED)" in line}
    others = {name.split(".so")[0] for name in needed if not name.startswith("ld-linux")}  # the C library's own loader
    assert others <= {"libc", "libdl", "libm", "libpthread", "librt"}


def test_sdist_builds_without_node(tmp_path: Path) -> None:
    """The sdist has the sources of all native parts and the built labextension, and no machine code."""
    archive = build_package("sdist", tmp_path)
    with tarfile.open(archive) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    expected = [
        *("native/shim/base/page.h", "native/simcuda/base/symbols.def", "native/simcuda/api/work/api_stream.c"),
        *("hatch_build.py", "labextension/src/index.ts", "labextension/yarn.lock"),
    ]
    assert set(expected) <= names
    assert str(LABEXTENSION.relative_to(ROOT)) in names
    stray = [name for name in names if name.endswith((".so", ".so.1", ".o")) or "node_modules" in name]
    assert stray == []


def test_version_is_the_same_everywhere() -> None:
    assert json.loads((ROOT / "labextension/package.json").read_text())["version"] == VERSION
    assert f"## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture
def native_tree(tmp_path: Path) -> Path:
    """Return a folder with the build script and with two small programs in place of the real ones."""
    shutil.copy(ROOT / "hatch_build.py", tmp_path)
    for folder, name in (("shim/agent", "agent_step"), ("simcuda/base", "one")):
        (tmp_path / "native" / folder).mkdir(parents=True)
        (tmp_path / "native" / folder / f"{name}.c").write_text("int one(void) { return 1; }\n")
    (tmp_path / "native/shim/base").mkdir()
    (tmp_path / "native/shim/base/page.h").write_text("#define ONE 1\n")
    return tmp_path


def _native(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "hatch_build.py", *arguments]
    return subprocess.run(command, cwd=tree, env=os.environ | environment, capture_output=True, text=True, check=False)


def test_native_build_makes_only_what_changed(native_tree: Path) -> None:
    first = _native(native_tree)
    assert first.returncode == 0, first.stderr
    assert "libgpushare.so" in first.stdout and "libcuda.so.1" in first.stdout
    assert "up to date" in _native(native_tree).stdout

    (native_tree / "native/simcuda/base/one.c").write_text("int two(void) { return 2; }\n")
    second = _native(native_tree)
    assert "simcuda/libcuda.so.1" in second.stdout and "libgpushare.so" not in second.stdout

    (native_tree / "native/shim/base/page.h").write_text("#define ONE 2\n")
    third = _native(native_tree)  # the simulated driver may include the shim's headers
    assert "simcuda/libcuda.so.1" in third.stdout and "libgpushare.so" in third.stdout
    assert (native_tree / "jupyter_gpushare/native/page.h").read_text() == "#define ONE 2\n"


def test_labextension_build_removes_the_file_that_pip_wrote_through_a_link(native_tree: Path) -> None:
    """The wheel has this file from another folder, and hatchling refuses a second one."""
    (native_tree / "PKG-INFO").touch()
    extension = native_tree / "jupyter_gpushare/labextension"
    extension.mkdir(parents=True)
    for name in ("install.json", "package.json"):
        (extension / name).write_text("{}")
    program = "import hatch_build; hatch_build.build_labextension('wheel', 'standard')"
    subprocess.run([sys.executable, "-c", program], cwd=native_tree, check=True)
    assert [path.name for path in extension.iterdir()] == ["package.json"]


def test_native_build_without_a_compiler_reports_the_remedy(native_tree: Path) -> None:
    result = _native(native_tree, CC="no-such-compiler")
    assert result.returncode == 1
    assert "No C compiler: 'no-such-compiler' was not found" in result.stderr
    assert "apt install gcc" in result.stderr
    assert "Traceback" not in result.stderr


def test_native_check_refuses_warnings(native_tree: Path) -> None:
    assert _native(native_tree, "--check").returncode == 0
    (native_tree / "native/shim/agent/agent_step.c").write_text("int one(void) { int unused; return 1; }\n")
    result = _native(native_tree, "--check")
    assert result.returncode == 1
    assert "unused" in result.stderr
