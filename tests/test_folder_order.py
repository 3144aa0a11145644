"""Tests of the order of folders inside the parts of the package, by the imports of the sources.

Every import counts, also in a function and under TYPE_CHECKING.
`tests/native/test_layering.py` has the order of the shim's folders.
`labextension/src/layering.test.ts` has the order of the lab extension's folders.
"""

from __future__ import annotations

import graphlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

import pytest

from .test_layering import PACKAGE, imports_of

# Folders and modules of a part from low to high: each may import itself and the entries before it.
ORDER = {
    "core": (
        *("base", "placement", "cluster", "interface", "measure", "state", "queueing.policies", "queueing", "throttle"),
        *("residency", "colocation", "turns", "handlers", "scheduler", "views"),
    ),
    "coordinator": (
        *("host", "transport", "storage", "gpu", "config", "clients", "monitoring", "views", "engine"),
        *("rpc.handlers", "rpc", "app"),
    ),
    "simulation": (
        *("clairvoyant", "workloads", "entities", "reports", "event_queue", "memory_transfers", "execution"),
        *("simulated_agent", "training_agent", "moving_agent", "free_capacity", "simulation", "experiment"),
        *("cluster", "scale"),
    ),
}

MAX_FILES = 12  # in a folder, without __init__.py
LARGE_FOLDERS = {"bench": "one file for each bench"}

ROOT = "jupyter_gpushare."


def graph_of(sources: Mapping[str, str], packages: Iterable[str]) -> dict[str, set[str]]:
    """Return the modules that each module of `sources` imports; both are dotted names below the package."""
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        found = graph[module] = set()
        for name, _ in imports_of(source, ROOT + module, module in packages):
            name = name.removeprefix(ROOT)
            target = name if name in sources else name.rpartition(".")[0]
            if target in sources and target != module:
                found.add(target)
    return graph


def place_of(module: str, order: tuple[str, ...]) -> int:
    """Return the position of a module in the order of its part, or -1 for a module that the order lacks."""
    inside = module.partition(".")[2]
    return next((n for n, name in enumerate(order) if inside == name or inside.rpartition(".")[0] == name), -1)


def upward_imports(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the imports that break ORDER, and the modules that ORDER lacks."""
    wrong = []
    for module, targets in graph.items():
        part = module.partition(".")[0]
        if part not in ORDER or module == part:
            continue
        place = place_of(module, ORDER[part])
        wrong += [f"{module} has no place"] if place < 0 and not _is_empty_package(module, targets) else []
        for target in targets:
            if target.partition(".")[0] == part and target != part and place_of(target, ORDER[part]) > place:
                wrong.append(f"{module} imports {target}")
    return sorted(wrong)


def _is_empty_package(module: str, targets: Iterable[str]) -> bool:
    return not targets and (PACKAGE / module.replace(".", "/")).is_dir()


def circles(graph: Mapping[str, set[str]]) -> list[frozenset[str]]:
    """Return circles of `graph`, each without the edges of those found before."""
    rest = {node: set(targets) for node, targets in graph.items()}
    found = []
    while True:
        try:
            graphlib.TopologicalSorter(rest).prepare()
        except graphlib.CycleError as error:
            circle = frozenset(error.args[1])
            found.append(circle)
            for node in circle:
                rest[node] -= circle
        else:
            return found


def folders_of(graph: Mapping[str, Iterable[str]], packages: Iterable[str]) -> dict[str, set[str]]:
    """Return the folders that each folder imports. A module at the top, or in a part with an order, is a folder."""

    def folder(module: str) -> str:
        parent = module if module in packages else module.rpartition(".")[0]
        return module if not parent or parent in ORDER else parent

    found: dict[str, set[str]] = defaultdict(set)
    for module, targets in graph.items():
        found[folder(module)] |= {folder(target) for target in targets} - {folder(module)}
    return found


def _package() -> tuple[dict[str, str], set[str]]:
    sources, packages = {}, set()
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
        if "labextension" in parts:
            continue
        if parts[-1] == "__init__":
            parts.pop()
            packages.add(".".join(parts))
        sources[".".join(parts)] = path.read_text()
    del sources[""]
    return sources, packages


SOURCES, PACKAGES = _package()
GRAPH = graph_of(SOURCES, PACKAGES)


def test_imports_follow_the_order_of_folders() -> None:
    assert upward_imports(GRAPH) == []


def test_there_is_no_circle_of_files() -> None:
    assert [sorted(circle) for circle in circles(GRAPH)] == []


def test_there_is_no_circle_of_folders() -> None:
    assert [sorted(circle) for circle in circles(folders_of(GRAPH, PACKAGES))] == []


@pytest.mark.parametrize("folder", sorted(PACKAGES))
def test_a_folder_has_few_files(folder: str) -> None:
    files = [path for path in (PACKAGE / folder.replace(".", "/")).glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MAX_FILES or folder in LARGE_FOLDERS


UPWARD = {"core.state.model": "from ..turns import grant_table", "core.turns.grant_table": ""}
HIDDEN = {"core.state.model": "def f():\n    from ..turns.grant_table import GrantTable", "core.turns.grant_table": ""}
DOWNWARD = {"core.turns.grant_table": "from ..state.model import Client", "core.state.model": ""}
UNPLACED = {"core.turns.start.early": "import math"}
CIRCLE = {"server.app": "from .kernels import Kernels", "server.kernels": "if TYPE_CHECKING:\n    from . import app"}
FOLDERS = {"server.app": "from ..launch import kernel_env", "launch.kernel_env": "from ..server.errors import E"}


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        (UPWARD, ["core.state.model imports core.turns.grant_table"]),
        (HIDDEN, ["core.state.model imports core.turns.grant_table"]),
        (DOWNWARD, []),
        (UNPLACED, ["core.turns.start.early has no place"]),
    ],
)
def test_an_upward_import_is_found(sources: dict[str, str], found: list[str]) -> None:
    assert upward_imports(graph_of(sources, ())) == found


def test_a_circle_is_found() -> None:
    assert circles(graph_of(CIRCLE, ())) == [frozenset(CIRCLE)]
    graph = graph_of({**FOLDERS, "server.errors": ""}, ())
    assert circles(graph) == []
    assert circles(folders_of(graph, ())) == [frozenset({"server", "launch"})]
