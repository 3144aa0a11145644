"""Tests of the order and the size of the shim's folders, and of circles of its files.

Calls and includes go to no higher folder. The calls are those of the objects' symbol tables.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from ..support.compile_cache import cached
from .api_tables import SHIM

# Folders from low to high. A folder inside another one has a place of its own.
FOLDERS = [
    *("base", "driver", "channel"),
    *("memory/account", "memory/transfers", "memory/freed", "memory/swap/host", "memory/swap", "memory"),
    *("gate", "coordinator", "agent", "hooks", "wrappers"),
]
MAX_FILES = 12  # in a folder, without the header that bears the folder's name

Calls = Mapping[str, Mapping[str, Iterable[str]]]  # by calling file and called file: symbols


@cache
def objects() -> Path:
    """Return a folder with an object of each C file, compiled without inlining so that no call is hidden."""
    sources = sorted(path for path in SHIM.rglob("*") if path.is_file())
    compiler = ["cc", "-std=gnu11", f"-I{SHIM}", "-O0", "-fPIC", "-c"]

    def commands(out: Path) -> list[list[str]]:
        files = [path for path in sources if path.suffix == ".c"]
        return [["mkdir", str(out)], *([*compiler, str(path), "-o", str(out / object_name(path))] for path in files)]

    return cached("objects", sources, commands)


def object_name(path: Path) -> str:
    return str(path.relative_to(SHIM)).replace("/", "__") + ".o"


def symbols(path: Path) -> Iterator[tuple[bool, str]]:
    """Yield the global symbols of an object, with True for a symbol that the object defines."""
    text = subprocess.run(["nm", "-g", str(path)], capture_output=True, text=True, check=True).stdout
    for line in text.splitlines():
        *_, kind, name = line.split()
        yield kind not in "Uw", name


@cache
def calls() -> Calls:
    """Return the symbols that each file of the shim uses of each other file."""
    defined: dict[str, str] = {}
    used: dict[str, set[str]] = {}
    for path in sorted(objects().iterdir()):
        file = path.name.removesuffix(".o").replace("__", "/")
        names = list(symbols(path))
        defined |= {name: file for is_defined, name in names if is_defined}
        used[file] = {name for is_defined, name in names if not is_defined}
    found: dict[str, dict[str, list[str]]] = {file: {} for file in used}
    for file, used_names in used.items():
        for name in sorted(used_names & defined.keys()):
            found[file].setdefault(defined[name], []).append(name)
    return found


def level(file: str) -> int:
    return FOLDERS.index(file.rpartition("/")[0])


def upward(found: Calls) -> list[str]:
    """Return a line for each call from a folder to a higher one."""
    return [
        f"{file} uses {', '.join(names)} of {other}"
        for file, others in found.items()
        for other, names in others.items()
        if level(other) > level(file)
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
    return re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE)


def test_every_folder_has_its_place() -> None:
    assert {str(path.parent.relative_to(SHIM)) for path in SHIM.rglob("*.[ch]")} == set(FOLDERS)


def test_the_main_header_of_the_base_lists_the_folders() -> None:
    text = (SHIM / "base" / "base.h").read_text().replace("\n *", "")
    listed = re.search(r"Folders, from the lowest: ([^.]*)\.", text)
    assert listed and listed[1].split(", ") == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_few_files(folder: str) -> None:
    path = SHIM / folder
    files = [file for file in path.iterdir() if file.is_file() and file.name != f"{path.name}.h"]
    assert len(files) <= MAX_FILES


def test_calls_go_to_the_same_or_a_lower_folder() -> None:
    assert upward(calls()) == []


def test_no_files_call_each_other_in_a_circle() -> None:
    assert circles(calls()) == set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_includes_are_of_the_same_or_a_lower_folder(folder: str) -> None:
    files = [path for path in (SHIM / folder).iterdir() if path.suffix in (".c", ".h")]
    assert files
    wrong = [(path.name, name) for path in files for name in includes(path) if level(name) > FOLDERS.index(folder)]
    assert wrong == []


def test_an_offence_is_found() -> None:
    found = {"base/log.c": {"gate/gate.c": ["gate_start"]}, "gate/gate.c": {"base/log.c": ["log_message"]}}
    assert upward(found) == ["base/log.c uses gate_start of gate/gate.c"]
    assert upward({"memory/swap/block.c": {"memory/modes.c": ["memory_mode_by_name"]}}) != []
    assert upward({"memory/modes.c": {"memory/swap/mode_swap.c": ["mode_swap"]}}) == []
    assert circles(found) == {frozenset(found)}
    assert circles({"a": {"b": ["f"]}, "b": {"c": ["g"]}, "c": {}}) == set()


def test_a_call_is_seen_in_the_objects() -> None:
    assert "log_message" in calls()["gate/gate.c"]["base/log.c"]
    assert "gate_start" in calls()["agent/start.c"]["gate/gate.c"]
