"""Nesting of the shim's locks, as the text of the sources shows it.

The walk follows each function in the order of its lines, with the locks that the thread holds, into the functions that
the function calls. A call through a field of a table goes to each function that a table of the shim has in that field.
The walk relies on the shim's style: a function unlocks at its end, or just before a `return` or `break`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import NamedTuple

Lock = tuple[str, str]  # file and name

COMMENT_OR_STRING = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
FUNCTION = re.compile(
    r"^(?P<result>[A-Za-z_][^\n;{}=]*?)\b(?!__attribute__)(?P<name>\w+)\((?P<parameters>[^;{}]*)\)[^;{}()]*"
    r"\{\n(?P<body>.*?)^\}",
    re.MULTILINE | re.DOTALL,
)
MACRO = re.compile(r"^#define (?P<name>\w+)\((?P<parameters>[^)]*)\)(?P<body>(?:.*\\\n)*.*)", re.MULTILINE)
FIELD = re.compile(r"\.(\w+) = (\w+)\b")
GLOBAL_LOCK = re.compile(r"^pthread_mutex_t (\w+) =", re.MULTILINE)
STEP = re.compile(
    r"(?:pthread_mutex_lock\(&|while \(atomic_flag_test_and_set\(&)(?P<locked>[\w.>-]+)\)"
    r"|pthread_mutex_trylock\(&(?P<tried>[\w.>-]+)\)"
    r"|(?:pthread_mutex_unlock|atomic_flag_clear)\(&(?P<unlocked>[\w.>-]+)\)"
    r"|(?:pthread_create|start_helper_thread)\([^;]*;"  # another thread calls the function
    r"|(?P<field>->|\.)?\b(?P<called>[A-Za-z_]\w*)\((?=(?P<arguments>[^;()]*))"
    r"|(?<!->)(?<!\.)\b(?P<chosen>[A-Za-z_]\w*)(?= : |\)\()"  # of several functions, as in (a ? f : g)(x)
)


class Function(NamedTuple):
    file: str
    name: str
    parameters: str
    body: str
    is_static: bool


class Sources:
    """Sources of the shim by their file names, and the nesting of their locks."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._texts = {file: COMMENT_OR_STRING.sub("", text) for file, text in sources.items()}
        self._functions = [function for file, text in self._texts.items() for function in functions_of(file, text)]
        self._by_name: dict[str, list[Function]] = defaultdict(list)
        for function in self._functions:
            self._by_name[function.name].append(function)
        self._files_of_globals = {
            name: file for file, text in self._texts.items() for name in GLOBAL_LOCK.findall(text)
        }
        self._fields: dict[str, list[Function]] = defaultdict(list)
        for file, text in self._texts.items():
            for field, name in FIELD.findall(text):
                self._fields[field] += self._named(file, [name])
        self._ends: dict[tuple[Function, frozenset[Lock], frozenset[str]], frozenset[Lock]] = {}
        self._nesting: dict[tuple[Lock, Lock], str] = {}

    @cached_property
    def locks(self) -> set[Lock]:
        """The locks that functions take."""
        return {
            self._lock(function.file, expression)
            for function in self._functions
            for step in STEP.finditer(function.body)
            if (expression := step["locked"] or step["tried"])
        }

    @cached_property
    def nesting(self) -> Mapping[tuple[Lock, Lock], str]:
        """Pairs of a lock that a thread holds and a lock that the thread waits for then, with a function that waits."""
        for function in self._functions:
            self._walk(function, frozenset(), frozenset())
        return self._nesting

    def _lock(self, file: str, expression: str) -> Lock:
        name = re.split(r"\W+", expression)[-1]
        return self._files_of_globals.get(name, file), name

    def _named(self, file: str, names: Iterable[str]) -> Iterator[Function]:
        for name in names:
            found = self._by_name.get(name, [])
            yield from [one for one in found if one.file == file] or [one for one in found if not one.is_static]

    def _walk(self, function: Function, held: frozenset[Lock], callbacks: frozenset[str]) -> frozenset[Lock]:
        """Walk a function that begins with locks held, and return the locks that are held at the end."""
        start = (function, held, callbacks)
        if start in self._ends:
            return self._ends[start]
        self._ends[start] = held  # of a recursive call
        for step in STEP.finditer(function.body):
            if locked := step["locked"] or step["tried"]:
                lock = self._lock(function.file, locked)
                if step["locked"]:
                    for outer in held:
                        self._nesting[outer, lock] = f"{function.name} of {function.file}"
                held |= {lock}
            elif step["unlocked"]:
                if not is_early_exit(function.body[step.end() :], step["unlocked"]):
                    held -= {self._lock(function.file, step["unlocked"])}
            else:
                held = self._walk_all(function, step, held, callbacks)
        self._ends[start] = held
        return held

    def _walk_all(
        self, function: Function, step: re.Match[str], held: frozenset[Lock], callbacks: frozenset[str]
    ) -> frozenset[Lock]:
        """Walk the functions that the step may call, and return the locks that are held afterwards."""
        name = step["called"] or step["chosen"]
        if not name:
            return held
        if step["field"]:
            called = self._fields[name]
        else:
            is_parameter = re.search(rf"\b{name}\b", function.parameters)
            called = list(self._named(function.file, callbacks if is_parameter else [name]))
        passed = frozenset(re.findall(r"\w+", step["arguments"] or "")).intersection(self._by_name)
        after = held
        for one in called:
            after = self._walk(one, held, passed)
        return after


def is_early_exit(rest: str, lock: str) -> bool:
    """Return True if the function has another unlock for the lock that it has just released, on another path."""
    steps = (step for step in STEP.finditer(rest) if lock in step.group("locked", "tried", "unlocked"))
    following = next(steps, None)
    return following is not None and following["unlocked"] is not None


def functions_of(file: str, text: str) -> Iterator[Function]:
    """Yield the functions of a file, and its macros with parameters."""
    for found in FUNCTION.finditer(text):
        is_static = "static" in found["result"]
        yield Function(file, found["name"], found["parameters"], found["body"], is_static and file.endswith(".c"))
    for found in MACRO.finditer(text):
        yield Function(file, found["name"], found["parameters"], found["body"], file.endswith(".c"))
