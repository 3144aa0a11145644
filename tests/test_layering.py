"""Tests of the order of the parts (docs/explanation/design.md), by the imports of the sources.

A part is a folder or a module directly in `jupyter_gpushare`.
Imports inside functions count as well, because they are still dependencies.
The kernel side runs on Python 3.8.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "jupyter_gpushare"

# The parts that a part may import; "" is `jupyter_gpushare/__init__.py` itself, for the version.
# Other parts may import all parts but OFF_LIMITS, because they use the coordinator through wire's client only.
MAY_IMPORT: dict[str, set[str]] = {
    "units": set(),
    "core": {"settings"},
    "settings": {"wire"},
    "wire": set(),
    "agent": {"wire"},
    "kernel": set(),  # runs in environments without this package
    "config": {"wire", "settings"},
    "launch": {"wire"},
    "metrics": set(),
    "nvml_devices": set(),
    "coordinator": {"", "core", "wire", "config", "settings", "metrics", "nvml_devices"},
    "simulation": {"core", "agent", "cluster", "wire"},
    "widgets": {"wire", "kernel", "settings"},
    "launcher": {"config", "launch"},
    "client_provisioner": {"config", "launch"},
    "provisioner": {"client_provisioner", "launch", "launcher"},
    "cluster": {"client_provisioner", "launch", "launcher", "wire"},
    "server": {
        *("client_provisioner", "cluster", "config", "launch", "launcher", "metrics", "provisioner", "settings"),
        "wire",
    },
    "cluster_daemon": {"", "cluster", "config", "coordinator", "core", "wire"},
    "demo": {"cluster", "config", "kernel", "launch", "wire"},
    "bench": {"agent", "config", "launch", "simulation", "wire"},
}
OFF_LIMITS = {"core", "coordinator", "cli"}
FOR_ALL = "units"  # imports no other part

# `jupyter gpushare coordinator` is the coordinator; `python -m jupyter_gpushare` is the command.
EXCEPTIONS = {("cli", "coordinator"), ("__main__", "cli")}

# The core gets events with their times and returns commands. The core does no input and output.
CORE_FORBIDDEN = {"asyncio", "importlib", "socket", "time", "os", "random", "threading"}

# Ray ends a process whose cluster has ended, so a process of its own has the only module that imports Ray.
RAY_BRIDGE = "jupyter_gpushare.cluster.ray_bridge"

# Modules in kernels may use the standard library of any Python >= 3.8, and inside functions the packages of a kernel.
KERNEL_MAY_USE = {"IPython", "dill", "ipykernel"}


class Import(NamedTuple):
    """Import with the absolute dotted name; `at_top` is true if it runs when the module is imported."""

    name: str
    at_top: bool


def imports_of(source: str, module: str, is_package: bool = False) -> Iterator[Import]:
    """Yield every import of `source`; relative imports are relative to the dotted name `module`.

    A use of `__import__` counts as an import of `importlib`.
    """
    tree = ast.parse(source)
    lazy = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.walk(node)
    }
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node not in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            prefix = [*base, *(node.module.split(".") if node.module else [])]
            yield from (Import(".".join([*prefix, alias.name]), node not in lazy) for alias in node.names)
        elif isinstance(node, ast.Name) and node.id == "__import__":
            yield Import("importlib", node not in lazy)


def offences(source: str, module: str, is_package: bool = False) -> list[str]:
    """Return the imports of a module with this source and this dotted name that break the rules."""
    parts = module.split(".")
    own = parts[1] if len(parts) > 1 else ""
    bad = []
    for name, at_top in imports_of(source, module, is_package):
        first, *rest = name.split(".")
        if first == "jupyter_gpushare":
            target = rest[0] if rest and _is_part(rest[0]) else ""
            allowed = (
                (target in (own, FOR_ALL) and name != RAY_BRIDGE)
                or (own, target) in EXCEPTIONS
                or (target in MAY_IMPORT[own] if own in MAY_IMPORT else target not in OFF_LIMITS)
            )
        elif first == "ray":
            allowed = module == RAY_BRIDGE
        elif own == "core":
            allowed = first not in CORE_FORBIDDEN
        elif own == "kernel":
            allowed = first in sys.stdlib_module_names or (first in KERNEL_MAY_USE and not at_top)
        else:
            allowed = True
        if not allowed:
            bad.append(name)
    return bad


def _is_part(name: str) -> bool:
    return name in MAY_IMPORT or name in OFF_LIMITS or any(PACKAGE.glob(f"{name}*"))


def _modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "labextension" not in path.parts)


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_what_its_part_may(path: Path) -> None:
    is_package = path.name == "__init__.py"
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    module = ".".join(parts[:-1] if is_package else parts)
    assert offences(path.read_text(), module, is_package) == []


# Kernels load the first three together with `kernel/`, even without this package in their environment.
IN_KERNELS = [PACKAGE / f"{name}.py" for name in ("__init__", "api", "units")]
IN_KERNELS += sorted((PACKAGE / "kernel").rglob("*.py"))


@pytest.mark.parametrize("path", IN_KERNELS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_kernel_side_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


def test_kernel_side_uses_the_library_of_python_3_8() -> None:
    command = [
        sys.executable,
        "-c",
        "import vermin; vermin.main()",
        "-t=3.8-",
        "--violations",
        "--no-tips",
        *map(str, IN_KERNELS),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("agent.rule", "from ..core.interface import events", ["jupyter_gpushare.core.interface.events"]),
        ("core.scheduler", "def f():\n    from os import path", ["os.path"]),
        ("core.scheduler", "clock = __import__('time').monotonic", ["importlib"]),
        ("core.scheduler", "from .. import __version__", ["jupyter_gpushare.__version__"]),
        ("core.queueing.policies.fcfs", "from ...state.model import Client\nfrom .base import Policy\nimport math", []),
        (
            "wire.client",
            "from jupyter_gpushare.core.interface import events",
            ["jupyter_gpushare.core.interface.events"],
        ),
        (
            "coordinator.engine.coordinator",
            "from ...core import events\nfrom ...wire import messages\nimport asyncio",
            [],
        ),
        ("kernel.magics", "import IPython", ["IPython"]),
        ("kernel.magics", "def load():\n    import IPython, json", []),
        ("kernel.magics", "def load():\n    import msgspec", ["msgspec"]),
        (
            "provisioner",
            "from .coordinator.engine import coordinator",
            ["jupyter_gpushare.coordinator.engine.coordinator"],
        ),
        ("cli", "def run():\n    from ..coordinator.app import main", []),
        ("server.errors", "from ..bench import harness", ["jupyter_gpushare.bench.harness"]),
        ("provisioner", "from .demo import runner", ["jupyter_gpushare.demo.runner"]),
        ("cluster.node.node_agent", "def start():\n    from ray import util", ["ray.util"]),
        ("cluster.ray_bridge", "import ray", []),
        ("cluster.settings", "from . import ray_bridge", ["jupyter_gpushare.cluster.ray_bridge"]),
        ("widgets.view", "from ..kernel import session\nfrom .. import launch", ["jupyter_gpushare.launch"]),
    ],
)
def test_layering_rules_detect_violations(module: str, source: str, found: list[str]) -> None:
    assert offences(source, f"jupyter_gpushare.{module}") == found
