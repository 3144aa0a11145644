"""Tests of the order and the size of the folders of the shim and of the simulated driver, and of circles of files.

Calls and includes go to no higher folder. The calls are those of the objects' symbol tables.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from ..driver_facts.harness import SIMCUDA
from ..support.compile_cache import cached
from .api_tables import SHIM


class Tree(NamedTuple):
    """Native sources in folders, from low to high. A folder inside another one has a place of its own."""

    root: Path
    header: str  # the file that lists the folders
    folders: tuple[str, ...]

    def level(self, file: str) -> int:
        return self.folders.index(file.rpartition("/")[0])


TREES = {
    "shim": Tree(
        SHIM,
        "base/base.h",
        (
            *("base", "driver", "channel"),
            *("memory/account", "memory/transfers", "memory/freed", "memory/swap/host", "memory/swap", "memory"),
            *("gate", "coordinator", "devices", "agent", "hooks", "wrappers"),
        ),
    ),
    "simcuda": Tree(
        SIMCUDA,
        "base/sim.h",
        (
            *("base", "machine", "context", "memory", "graph", "work", "module", "checkpoint"),
            *("api/memory", "api/work", "api"),
        ),
    ),
}
each_tree = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
each_folder = pytest.mark.parametrize(
    ("tree", "folder"),
    [pytest.param(tree, folder, id=f"{name}/{folder}") for name, tree in TREES.items() for folder in tree.folders],
)
SHARED = [SHIM / "driver" / "cuda_types.h"]  # included by the simulated driver
MAX_FILES = 12  # in a folder, without the header that bears the folder's name

Calls = Mapping[str, Mapping[str, Iterable[str]]]  # by calling file and called file: symbols


@cache
def objects(tree: Tree) -> Path:
    """Return a folder with an object of each C file, compiled without inlining so that no call is hidden."""
    sources = sorted(path for path in tree.root.rglob("*") if path.is_file())
    compiler = ["cc", "-std=gnu11", f"-I{tree.root}", "-O0", "-fPIC", "-c"]

    def commands(out: Path) -> list[list[str]]:
        files = [path for path in sources if path.suffix == ".c"]
        return [
            ["mkdir", str(out)],
            *([*compiler, str(path), "-o", str(out / object_name(tree, path))] for path in files),
        ]

    return cached("objects", [*sources, *SHARED], commands)


def object_name(tree: Tree, path: Path) -> str:
    return str(path.relative_to(tree.root)).replace("/", "__") + ".o"


def symbols(path: Path) -> Iterator[tuple[bool, str]]:
    """Yield the global symbols of an object, with True for a symbol that the object defines."""
    text = subprocess.run(["nm", "-g", str(path)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        *_, kind, name = line.split()
        yield kind not in "Uw", name


@cache
def calls(tree: Tree) -> Calls:
    """Return the symbols that each file of the tree uses of each other file."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    for path in sorted(objects(tree).iterdir()):
        file = path.name.removesuffix(".o").replace("__", "/")
        names = list(symbols(path))
        defined |= {name: file for is_defined, name in names if is_defined}
        used[file] = {name for is_defined, name in names if not is_defined}
    found: dict[str, dict[str, list[str]]] = {file: {} for file in used}
    for file, used_names in used.items():
        for name in sorted(used_names & defined.keys()):
            found[file].setdefault(defined[name], []).append(name)
    return found


def upward(tree: Tree, found: Calls) -> list[str]:
    """Return a line for each call from a folder to a higher one."""
    return [
        f"{file} uses {', '.join(names)} of {other}"
        for file, others in found.items()
        for other, names in others.items()
        if tree.level(other) > tree.level(file)
    ]


def circles(found: Calls) -> set[frozenset[str]]:
    """Return the sets of files that call each other, directly or through other files of the set."""
    reached = {file: reach(found, file) for file in found}
    groups = {frozenset(other for other in there if file in reached[other]) for file, there in reached.items()}
    return {group for group in groups if group}


def reach(found: Calls, file: str) -> set[str]:
    """Return the files that `file` calls, directly or through other files."""
    reached: set[str] = set()
    waiting = list(found[file])
    while waiting:
        other = waiting.pop()
        if other not in reached:
            reached.add(other)
            waiting += found[other]
    return reached


def includes(path: Path) -> list[str]:
    """Return the included files of the same tree. An include of another tree begins with its path up to `native`."""
    return re.findall(r'^\s*#\s*include\s+"(?!(?:\.\./)+shim/)([^"]+)"', path.read_text(), re.MULTILINE)


def include_graph(root: Path) -> Calls:
    """Return the files of the tree that each file of the tree includes."""
    files = {str(path.relative_to(root)): path for path in root.rglob("*") if path.suffix in (".c", ".h")}
    return {file: {name: ["#include"] for name in includes(path) if name in files} for file, path in files.items()}


@each_tree
def test_every_folder_has_its_place(tree: Tree) -> None:
    assert {str(path.parent.relative_to(tree.root)) for path in tree.root.rglob("*.[ch]")} == set(tree.folders)


@each_tree
def test_the_main_header_of_the_base_lists_the_folders(tree: Tree) -> None:
    text = (tree.root / tree.header).read_text().replace("\n *", "")
    listed = re.search(r"Folders, from the lowest: ([^.]*)\.", text)
    assert listed and tuple(listed[1].split(", ")) == tree.folders


@each_folder
def test_a_folder_has_few_files(tree: Tree, folder: str) -> None:
    path = tree.root / folder
    files = [file for file in path.iterdir() if file.is_file() and file.name != f"{path.name}.h"]
    assert len(files) <= MAX_FILES


@each_tree
def test_calls_go_to_the_same_or_a_lower_folder(tree: Tree) -> None:
    assert upward(tree, calls(tree)) == []


@each_tree
def test_no_files_call_each_other_in_a_circle(tree: Tree) -> None:
    assert circles(calls(tree)) == set()


@each_tree
def test_no_files_include_each_other_in_a_circle(tree: Tree) -> None:
    found = include_graph(tree.root)
    assert "base/state.c" in found
    assert circles(found) == set()


@each_folder
def test_includes_are_of_the_same_or_a_lower_folder(tree: Tree, folder: str) -> None:
    files = [path for path in (tree.root / folder).iterdir() if path.suffix in (".c", ".h")]
    assert files
    here = tree.folders.index(folder)
    wrong = [(path.name, name) for path in files for name in includes(path) if tree.level(name) > here]
    assert wrong == []


@each_tree
def test_an_offence_is_found(tree: Tree) -> None:
    low, high = f"{tree.folders[0]}/low.c", f"{tree.folders[-1]}/high.c"
    assert upward(tree, {low: {high: ["start"]}, high: {low: ["log"]}}) == [f"{low} uses start of {high}"]
    inner = next(folder for folder in tree.folders if folder.rpartition("/")[0] in tree.folders)
    inside, outside = f"{inner}/inside.c", f"{inner.rpartition('/')[0]}/outside.c"
    assert upward(tree, {inside: {outside: ["f"]}}) == [f"{inside} uses f of {outside}"]
    assert upward(tree, {outside: {inside: ["f"]}}) == []


def test_a_circle_is_found() -> None:
    found = {"a": {"b": ["f"]}, "b": {"a": ["g"]}}
    assert circles(found) == {frozenset(found)}
    assert circles({"a": {"b": ["f"]}, "b": {"c": ["g"]}, "c": {}}) == set()


def test_a_circle_of_includes_is_found(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "a.h").write_text('#ifdef A\n#  include "base/b.h"\n#endif\n')
    (tmp_path / "base" / "b.h").write_text('# include "../shim/base/base.h"\n #include "base/a.h"\n')
    (tmp_path / "c.c").write_text('#include "base/a.h"\n#include <stdio.h>\n')
    found = include_graph(tmp_path)
    assert {file: set(names) for file, names in found.items()} == {
        "base/a.h": {"base/b.h"},
        "base/b.h": {"base/a.h"},
        "c.c": {"base/a.h"},
    }
    assert circles(found) == {frozenset({"base/a.h", "base/b.h"})}


def test_a_call_is_seen_in_the_objects() -> None:
    shim, simcuda = calls(TREES["shim"]), calls(TREES["simcuda"])
    assert "log_message" in shim["gate/gate.c"]["base/log.c"]
    assert "gate_start" in shim["agent/start.c"]["gate/gate.c"]
    assert "engine_begin" in simcuda["api/work/api_event.c"]["work/engine.c"]
