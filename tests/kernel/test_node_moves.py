"""Tests of the variables that go along with a kernel to another node, and of the kernel's wait for the server."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from jupyter_gpushare.kernel import node_moves
from jupyter_gpushare.kernel.errors import GpuShareError, UsageError
from jupyter_gpushare.kernel.node_moves import KernelHasMoved, NodeMoves, load_variables, save_variables, user_variables


class Unsaved:
    """Object with parts that can be saved, which cannot be saved itself."""

    def __init__(self, parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return list, (self.parts, (one for one in ()))


class Unloaded(Unsaved):
    """Object with parts that can be saved and loaded, which cannot be loaded itself."""

    def __reduce__(self) -> Any:
        return int, ("no number", self.parts)


def moved(variables: dict[str, Any], path: Path) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """Return the variables that have moved, and those that could not be saved and loaded."""
    _, unsaved = save_variables(variables, str(path))
    found: dict[str, Any] = {}
    _, unloaded = load_variables(found, str(path))
    return found, unsaved, unloaded


def test_one_bad_variable_leaves_the_others_and_what_they_share(tmp_path: Path) -> None:
    first, second, third = [1], [2], [3]
    variables = {
        "first": first,
        "unsaved": Unsaved([first, second]),
        "both": [first, second],
        "unloaded": [first, Unloaded(third)],
        "second": second,
        "third": [third],
        "last": (second, "text"),
    }
    found, unsaved, unloaded = moved(variables, tmp_path / "v")
    assert unsaved == {"unsaved": "TypeError: cannot pickle 'generator' object"}
    assert unloaded.keys() == {"unloaded", "third"}
    assert unloaded["third"] == "GpuShareError: shares objects with unloaded"
    assert found == {"first": [1], "both": [[1], [2]], "second": [2], "last": ([2], "text")}
    assert found["both"][0] is found["first"]
    assert found["both"][1] is found["second"] is found["last"][0]


@pytest.mark.parametrize("seed", range(20))
def test_no_variable_gets_a_part_of_another_one(tmp_path: Path, seed: int) -> None:
    """A variable that shares nothing with a bad one always moves, with the same shared objects as before."""
    chance = random.Random(seed)
    parts: list[Any] = [[number] for number in range(12)]
    variables: dict[str, Any] = {}
    for number in range(30):
        chosen = chance.sample(parts, 3)
        kind = chance.choice([list, list, list, Unsaved, Unloaded])
        variables[f"v{number}"] = [kind(chosen), *chosen]
        if chance.random() < 0.5:
            parts.append([f"new in v{number}", chance.choice(parts)])
    found, unsaved, unloaded = moved(variables, tmp_path / "v")
    assert found.keys() | unsaved.keys() | unloaded.keys() == variables.keys()
    assert {name for name, value in variables.items() if type(value[0]) is Unsaved} == unsaved.keys()
    for name, value in found.items():
        assert value == variables[name]
    identities = {id(part): set[int]() for value in variables.values() for part in value[1:]}
    for name, value in found.items():
        for before, after in zip(variables[name][1:], value[1:], strict=True):
            identities[id(before)].add(id(after))
    assert all(len(one) <= 1 for one in identities.values())


def test_variables_above_the_limit_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    class Array:
        nbytes = 5000

        def __reduce__(self) -> Any:
            raise AssertionError("copied")

    for value in (Array(), [b"x" * 900] * 2 + [bytes([i]) * 900 for i in range(9)]):
        with pytest.raises(UsageError, match=r"more than 3\.91 KiB, which is the limit"):
            save_variables({"small": 1, "large": value}, str(tmp_path / "v"), max_bytes=4000)
        assert (tmp_path / "v").stat().st_size <= 4000


def test_an_array_in_a_list_is_refused_before_the_copy(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.zeros(50 << 20, numpy.uint8)]
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="which is the limit"):
            save_variables({"arrays": arrays}, str(tmp_path / "v"), max_bytes=1 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20


def test_an_object_whose_attributes_fail_moves(tmp_path: Path) -> None:
    class Failing:
        @property
        def nbytes(self) -> int:
            raise RuntimeError("no size")

    assert save_variables({"x": [Failing()]}, str(tmp_path / "v")) == (1, {})


def test_files_stay_behind_with_their_contents(tmp_path: Path) -> None:
    """A file that is opened again by its name and mode is emptied, or replaced by another one."""
    names = [tmp_path / name for name in ("closed", "open", "read", "new", "binary", "plus", "raw")]
    for path in names:
        path.write_text("before")
    (tmp_path / "new").unlink()
    with open(names[0], "w") as closed:
        closed.write("result")
    with contextlib.ExitStack() as stack:
        files: dict[str, Any] = {
            "closed": closed,
            "open": stack.enter_context(open(names[1], "w")),
            "read": stack.enter_context(open(names[2])),
            "new": stack.enter_context(open(names[3], "x")),
            "binary": stack.enter_context(open(names[4], "wb")),
            "plus": stack.enter_context(open(names[5], "rb+")),
            "raw": stack.enter_context(open(names[6], "wb", buffering=0)),
            "named": stack.enter_context(tempfile.NamedTemporaryFile("w")),
            "unnamed": stack.enter_context(tempfile.TemporaryFile()),
        }
        for name in ("open", "new"):
            files[name].write("result")
            files[name].flush()
        for name in ("binary", "raw"):
            files[name].write(b"result")
            files[name].flush()
        contents = [path.read_text() for path in names]
        variables = {**files, "log": {"files": [closed]}, "write": lambda file=closed: file.write("x"), "x": 41}
        found, unsaved, unloaded = moved(variables, tmp_path / "v")
        assert [path.read_text() for path in names] == contents
        assert contents == ["result", "result", "before", "result", "result", "before", "result"]
    assert found == {"x": 41} and not unloaded
    expected = dict.fromkeys(files, "a file") | dict.fromkeys(("named", "log", "write"), "contains a file")
    assert unsaved == expected


def test_threads_and_processes_are_named_as_such(tmp_path: Path) -> None:
    worker = multiprocessing.get_context("spawn").Process(target=print)
    with subprocess.Popen(["true"], stdout=subprocess.PIPE) as program:
        variables = {"thread": threading.Thread(), "worker": worker, "program": program, "all": [worker]}
        found, unsaved, _ = moved(variables, tmp_path / "v")
    nouns = {"thread": "a thread", "worker": "a process", "program": "a process", "all": "contains a process"}
    assert unsaved == nouns and not found


def test_files_in_memory_move(tmp_path: Path) -> None:
    variables = {"text": io.StringIO("a\nb\n"), "binary": io.BytesIO(b"abc")}
    variables["text"].readline()
    found, unsaved, unloaded = moved(variables, tmp_path / "v")
    assert not unsaved and not unloaded
    assert found["text"].read() == "b\n" and found["binary"].read() == b"abc"


def test_a_file_without_its_end_is_refused(tmp_path: Path) -> None:
    save_variables({"x": list(range(1000)), "y": 2}, str(tmp_path / "v"))
    content = (tmp_path / "v").read_bytes()
    for kept in (content[:-1], content[100:], content[:4], b""):
        (tmp_path / "v").write_bytes(kept)
        found: dict[str, Any] = {}
        with pytest.raises((ValueError, OSError)):
            load_variables(found, str(tmp_path / "v"))
        assert found == {}


def test_the_variables_of_ipython_stay() -> None:
    shell = InteractiveShell()
    shell.run_cell("x = 1; _mine = 2; In = 3\n_mine", store_history=True)
    shell.run_cell("x", store_history=True)
    assert user_variables(shell).keys() == {"x", "_mine"}


def test_objects_of_a_startup_file_move_as_the_user_has_changed_them() -> None:
    shell = InteractiveShell()
    shell.run_cell("import os; def_ = len; config = {}; LIMIT = 3; pair = (1, 'a'); mixed = (1, [])\nclass C: pass")
    shell.user_ns_hidden.update(shell.user_ns)  # as IPython does after its startup files
    shell.run_cell("config['key'] = 1; mixed[1].append(2)")
    assert user_variables(shell) == {"config": {"key": 1}, "mixed": (1, [2])}
    shell.run_cell("LIMIT = 4")
    assert user_variables(shell).keys() == {"config", "mixed", "LIMIT"}


def test_a_startup_file_replaces_no_variable_of_the_kernel_that_has_moved(tmp_path: Path) -> None:
    path = tmp_path / "variables-1"
    save_variables({"config": {"key": 1}}, str(path))
    shell = InteractiveShell()
    node_moves.restore_variables(shell, str(path))
    shell.user_ns.update(config={})  # as a startup file does
    shell.user_ns_hidden.update(shell.user_ns)
    shell.run_cell("found = dict(config)")
    assert shell.user_ns["found"] == {"key": 1} and "config" not in shell.user_ns_hidden


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a kernel whose process is this one."""
    (tmp_path / "state").write_text(json.dumps({"pid": os.getpid()}))
    number = signal.getsignal(signal.SIGINT)
    yield tmp_path
    signal.signal(signal.SIGINT, number)


class Kernel:
    """Kernel on the node `here` that runs a cell with a line that moves the kernel to `there`."""

    def __init__(self, folder: Path, cell: str = "%gpushare move there", is_alone: bool = True) -> None:
        self.shell = InteractiveShell()
        self.shell.run_cell("x = 41")
        self.shell.kernel = self
        self._cell = cell
        env = {"GPUSHARE_KERNEL_FOLDER": str(folder), "GPUSHARE_NODE": "here", "GPUSHARE_NODES": "there,other"}
        self.moves = NodeMoves(self.shell, env, lambda: is_alone)

    def get_parent(self) -> Any:
        return {"content": {"code": self._cell}}


def answers(monkeypatch: pytest.MonkeyPatch, *steps: Callable[[], None]) -> None:
    """Take these steps, one each time the kernel waits for the server's answer."""
    left = list(steps)
    monkeypatch.setattr(time, "sleep", lambda _: left.pop(0)())


def rename(folder: Path) -> str:
    """Lock the move as a server does, and return its id."""
    (path,) = folder.glob("move-*")
    move = path.name.partition("-")[2]
    path.rename(folder / f"locked-{move}")
    return move


def answer(folder: Path, state: str) -> None:
    (path,) = folder.glob("variables-*")
    content = {"state": state, "reason": "no room"}
    node_moves.write_file(str(folder / path.name.replace("variables", "answer")), content)


class EndOfProcess(BaseException):
    """End of the process, for which the kernel's wait has no handler."""


def end() -> None:
    raise EndOfProcess


def stop() -> None:
    signal.raise_signal(signal.SIGINT)


def test_a_stopped_cell_withdraws_the_move(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, stop, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        Kernel(folder).moves.move("there")
    with pytest.raises(KeyboardInterrupt):  # which has its effect again
        stop()
    assert [path.name for path in folder.iterdir()] == ["state"]


def test_a_cell_cannot_be_stopped_once_the_server_switches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock_and_stop() -> None:
        rename(folder)
        stop()

    answers(monkeypatch, lock_and_stop, stop, lambda: answer(folder, "done"))
    kernel = Kernel(folder)
    with pytest.raises(KernelHasMoved):
        kernel.moves.move("there")
    assert list(folder.glob("variables-*")), "the server removes the folder when the new kernel counts"
    answers(monkeypatch, stop, end)
    result = kernel.shell.run_cell("x = 42")
    assert isinstance(result.error_in_exec, EndOfProcess) and kernel.shell.user_ns["x"] == 41


def test_a_refused_move_leaves_the_kernel_without_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, lambda: answer(folder, "refused"))
    with pytest.raises(GpuShareError, match="this kernel stays on here with its variables: no room"):
        Kernel(folder).moves.move("there")
    assert [path.name for path in folder.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cell": "%gpushare move there\nx = 2"}, "must be the only line of its cell"),
        (
            {"cell": "for i in range(3): get_ipython().run_line_magic('gpushare', 'move there')"},
            "must be the only line",
        ),
        ({"is_alone": False}, "another cell of this kernel runs: move the kernel when the cell has ended"),
    ],
)
def test_a_move_is_refused_while_a_cell_runs(folder: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        Kernel(folder, **options).moves.move("there")


def test_a_program_of_the_kernel_cannot_move_the_kernel(folder: Path) -> None:
    (folder / "state").write_text(json.dumps({"pid": os.getppid()}))
    with pytest.raises(UsageError, match="this process is another one"):
        Kernel(folder).moves.move("there")


def test_a_full_disk_leaves_the_kernel(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_moves, "save_variables", lambda *_: os.open("/dev/full/x", os.O_WRONLY))
    with pytest.raises(GpuShareError, match=r"the variables cannot be saved in .*: Not a directory"):
        Kernel(folder).moves.move("there")
    assert [path.name for path in folder.iterdir()] == ["state"]
