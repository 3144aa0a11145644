"""Move of a kernel to another node of the Jupyter server: `%gpushare move NODE`, and the variables that go along.

No process moves. The kernel saves its variables and waits in its cell, while the server starts a kernel on the other
node, which loads the variables. Only then does the server end this kernel.
`cluster/node/kernel_moves.py` describes the files in the kernel's folder by which the kernel and the server exchange
requests.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import io
import json
import os
import re
import secrets
import signal
import subprocess
import threading
import time
import types
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.units import format_size

from .cell_reporter import cell_text
from .errors import GpuShareError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MAX_BYTES = 1 << 30  # of the saved variables, which go through the Jupyter server
_PROTOCOL = 3  # of pickle: the last one without frames, so that the next record can be read after a broken one
_POLL_SECONDS = 0.1  # between two looks for the server's answer
_INDEX_LENGTH = 8  # bytes at the end of a file, with the length of the index before them
# Names of IPython's own variables, such as `_`, `_12` and `_i3`, and names such as `__file__`.
_NOT_OF_THE_USER = re.compile(r"_{1,3}|_i{1,3}|_i?\d+|__\w+__|_ih|_oh|_dh|In|Out")
_NAMES_OF_IPYTHON = ("get_ipython", "exit", "quit", "open", "display")
_UNCHANGEABLE = (
    *(types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType, type),
    *(int, float, str, bytes, bool, type(None)),
)
_FILES_IN_MEMORY = (io.BytesIO, io.StringIO)
_MOVE_LINE = re.compile(r"%?gpushare\s+move\b")


class _Bound(Exception):
    """Object that belongs to one process, as a part of a variable. The text is a noun, such as "a file"."""

    def __init__(self, noun: str, value: Any) -> None:
        super().__init__(noun)
        self.value = value


class KernelHasMoved(Exception):
    """End of the cell that has moved the kernel, so that cells that wait do not run. IPython shows no traceback."""

    def _render_traceback_(self) -> list[str]:
        return []


class NodeMoves:
    """Moves of one kernel, which has the variables `env` from the node agent.

    `is_alone` returns whether no other request runs than that of the present cell.
    """

    def __init__(self, shell: Any, env: Mapping[str, str], is_alone: Callable[[], bool]) -> None:
        self._shell = shell
        self._is_alone = is_alone
        self._folder = env.get("GPUSHARE_KERNEL_FOLDER", "")
        self._node = env.get("GPUSHARE_NODE", "")
        self._nodes = [name for name in env.get("GPUSHARE_NODES", "").split(",") if name]

    def is_node(self, name: str) -> bool:
        """Return whether the kernel runs on a node, and `name` is a node rather than a device."""
        return bool(self._folder) and name in (*self._nodes, self._node)

    @property
    def hint(self) -> str:
        """Return the other nodes, for the message about an unknown device; "" without any."""
        return f" (other nodes: {', '.join(self._nodes)})" if self._folder and self._nodes else ""

    def move(self, node: str) -> None:
        """Save the variables, print what cannot be saved, and wait until the kernel has moved.

        Raise GpuShareError for a kernel that stays on its node, and KernelHasMoved for a kernel that has moved.
        """
        self._check(node)
        move = secrets.token_hex(8)
        path = os.path.join(self._folder, "variables-" + move)
        try:
            number, left_out = save_variables(user_variables(self._shell), path)
            size = os.path.getsize(path)
            print(f"This kernel moves to {node} with {_count(number)} ({format_size(size)}).")
            for name, reason in left_out.items():
                print(f"Not taken along: {name} ({reason})")
            answer = self._ask(move, {"id": move, "node": node, "size": size})
        except BaseException as error:
            self._remove(move)
            if isinstance(error, OSError):
                raise GpuShareError(f"the variables cannot be saved in {path}: {error.strerror}") from None
            if isinstance(error, KeyboardInterrupt):
                print(f"The move is withdrawn, and this kernel stays on {self._node} with its variables.")
            raise
        if answer["state"] != "done":
            self._remove(move)
            raise GpuShareError(f"this kernel stays on {self._node} with its variables: {answer['reason']}")
        raise KernelHasMoved(f"this kernel has moved to {node}")

    def _check(self, node: str) -> None:
        if node == self._node:
            raise UsageError(f"this kernel runs on {node} already{self.hint}")
        lines = [line.strip() for line in cell_text(self._parent()).splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        if len(lines) != 1 or not _MOVE_LINE.match(lines[0]):
            raise UsageError(
                f"%gpushare move {node} must be the only line of its cell, because the cell ends with this kernel"
            )
        if not self._is_alone():
            raise UsageError("another cell of this kernel runs: move the kernel when the cell has ended")
        try:
            with open(os.path.join(self._folder, "state")) as file:
                is_own = json.load(file)["pid"] == os.getpid()
        except (OSError, ValueError, KeyError):
            is_own = False
        if not is_own:
            raise UsageError("only the kernel that a node agent has started can move, and this process is another one")

    def _parent(self) -> Any:
        get_parent = getattr(getattr(self._shell, "kernel", None), "get_parent", None)
        return get_parent() if get_parent else None

    def _ring(self) -> None:
        """Wake the node agent. An agent that comes later finds the file of the move."""
        with contextlib.suppress(OSError):
            descriptor = os.open(os.path.join(self._folder, "doorbell"), os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, b"!")
            finally:
                os.close(descriptor)

    def _ask(self, move: str, request: dict[str, Any]) -> dict[str, Any]:
        """Ask the server for a move, and return its answer. Raise KeyboardInterrupt for a stop before the switch.

        A stop sets a flag only, so that no moment is without an owner of the variables. After a move that is done, the
        kernel runs no other cell.
        """
        is_stopped = threading.Event()
        before = None
        with contextlib.suppress(ValueError):  # in another thread than the main one, which gets no stop
            before = signal.signal(signal.SIGINT, lambda *_: is_stopped.set())
        answer: dict[str, Any] = {"state": "unknown"}
        try:
            write_file(os.path.join(self._folder, "move-" + move), request)
            self._ring()
            answer = self._wait(move, is_stopped)
            if answer["state"] == "done":
                self._freeze()
            return answer
        finally:
            if before is not None and answer["state"] != "done":
                signal.signal(signal.SIGINT, before)

    def _wait(self, move: str, is_stopped: threading.Event) -> dict[str, Any]:
        while True:
            with contextlib.suppress(OSError, ValueError), open(os.path.join(self._folder, "answer-" + move)) as file:
                answer: dict[str, Any] = json.load(file)
                return answer
            if is_stopped.is_set():
                is_stopped.clear()
                # The removal and the server's renaming of the same file decide which of them came first.
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._folder, "move-" + move))
                    raise KeyboardInterrupt
            time.sleep(_POLL_SECONDS)

    def _remove(self, move: str) -> None:
        for name in ("move", "variables", "answer"):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, f"{name}-{move}"))

    def _freeze(self) -> None:
        """Let no other cell run, because the other kernel has the variables from now on."""

        def wait_for_the_end(*_: Any) -> None:
            while True:
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(3600)

        self._shell.events.register("pre_execute", wait_for_the_end)


def user_variables(shell: Any) -> dict[str, Any]:
    """Return the variables of the user in a kernel, also objects of a startup file that may have changed since."""
    hidden = shell.user_ns_hidden
    missing = object()

    def is_as_at_the_start(name: str, value: Any) -> bool:
        return hidden.get(name, missing) is value and (name in _NAMES_OF_IPYTHON or _is_unchangeable(value))

    return {
        name: value
        for name, value in shell.user_ns.items()
        if not _NOT_OF_THE_USER.fullmatch(name) and not is_as_at_the_start(name, value)
    }


def _is_unchangeable(value: Any) -> bool:
    return isinstance(value, _UNCHANGEABLE) or (type(value) is tuple and all(map(_is_unchangeable, value)))


class _CountingFile:
    """File with a limit, which is checked before data are written."""

    def __init__(self, file: Any, max_bytes: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self.size = 0
        self.error: Exception | None = None  # which a pickler may have caught

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.require(size)
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.size += size
        return size

    def require(self, size: int) -> None:
        """Raise UsageError if so many bytes do not fit."""
        if self.size + size > self._max_bytes:
            self.error = UsageError(
                f"the variables of this kernel have more than {format_size(self._max_bytes)}, which is the limit for a "
                "move to another node: delete large ones, or save them in files"
            )
            raise self.error

    def truncate(self, size: int) -> None:
        self._file.seek(size)
        self._file.truncate()
        self.size = size


def save_variables(variables: Mapping[str, Any], path: str, max_bytes: int = MAX_BYTES) -> tuple[int, dict[str, str]]:
    """Write variables to a file. Raise GpuShareError or OSError.

    Return the number of the saved variables, and by name the reasons why others cannot be saved. Each variable is a
    record of its own. Objects that several variables share stay shared, so the index at the end of the file lists for
    each record the earlier records that have such objects.
    """
    dill = _dill()

    class Pickler(dill.Pickler):  # type: ignore[misc,name-defined]
        start = 0  # of the memo of this record

        def get(self, i: int) -> Any:
            if i < self.start:
                used.add(i)
            return super().get(i)

        def save(self, obj: Any, *args: Any, **options: Any) -> Any:
            kind: Any = type(obj)  # rather than __class__, which may raise any error
            if noun := _bound_noun(kind):
                raise _Bound(noun, obj)
            if id(obj) not in self.memo:
                file.require(_size_of_array(obj))  # before the object is copied
            return super().save(obj, *args, **options)

    index: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    memo: dict[int, Any] = {}
    starts: list[int] = []  # of the saved records in the memo
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        file = _CountingFile(opened, max_bytes)
        for name, value in variables.items():
            used: set[int] = set()
            size, before = file.size, len(memo)
            pickler = Pickler(file, _PROTOCOL)
            pickler.memo, pickler.start = memo, before
            try:
                pickler.dump(value)
            except Exception as error:
                if file.error:
                    raise file.error from None
                if isinstance(error, _Bound):
                    left_out[name] = str(error) if error.value is value else f"contains {error}"
                else:
                    left_out[name] = _one_line(error)
                file.truncate(size)
                while len(memo) > before:
                    memo.popitem()
                continue
            needs = sorted({bisect.bisect_right(starts, i) - 1 for i in used})
            index.append({"name": name, "size": file.size - size, "needs": needs})
            starts.append(before)
        content = json.dumps(index).encode()
        opened.write(content + len(content).to_bytes(_INDEX_LENGTH, "big"))
    return len(index), left_out


@functools.lru_cache(maxsize=1024)
def _bound_noun(kind: type) -> str:
    """Return a noun for objects of a type that belong to one process, such as "a file", and "" for other types.

    dill would open a file again on the other node by its name and mode, which empties a file of mode "w".
    """
    from multiprocessing.process import BaseProcess  # here, because the import would slow down every start of a kernel

    if issubclass(kind, _FILES_IN_MEMORY):
        return ""
    nouns = {
        io.IOBase: "a file",
        threading.Thread: "a thread",
        subprocess.Popen: "a process",
        BaseProcess: "a process",
    }
    return next((noun for base, noun in nouns.items() if issubclass(kind, base)), "")


def _size_of_array(value: Any) -> int:
    """Return the bytes of an array, and 0 for other objects, whose attributes may raise any error."""
    with contextlib.suppress(Exception):
        if isinstance(size := value.nbytes, int):
            return size
    return 0


class _Unbuffered:
    """File from which an unpickler reads no further than its record. The file itself has a buffer."""

    def __init__(self, file: Any) -> None:
        self.read, self.readline, self.readinto = file.read, file.readline, file.readinto


def load_variables(namespace: dict[str, Any], path: str) -> tuple[int, dict[str, str]]:
    """Read the variables of a file into a namespace. Raise GpuShareError, OSError or ValueError for the whole file.

    Return the number of the variables, and by name the reasons why others cannot be read.
    """
    dill = _dill()
    number, failed = 0, {}
    with open(path, "rb") as file:
        file.seek(-_INDEX_LENGTH, os.SEEK_END)
        end = file.tell()
        length = int.from_bytes(file.read(), "big")
        file.seek(end - length)
        records = json.loads(file.read(length))
        if sum(record["size"] for record in records) != end - length:
            raise ValueError("the file has another length than its index")
        unpickler = dill.Unpickler(_Unbuffered(file))
        missing: set[int] = set()
        position = 0
        for this, record in enumerate(records):
            try:
                if lacking := missing.intersection(record["needs"]):
                    names = ", ".join(sorted(records[one]["name"] for one in lacking))
                    raise GpuShareError(f"shares objects with {names}")
                file.seek(position)
                namespace[record["name"]] = unpickler.load()
                number += 1
            except Exception as error:
                failed[record["name"]] = _one_line(error)
                missing.add(this)
            position += record["size"]
    return number, failed


def restore_variables(shell: Any, path: str) -> str:
    """Load the variables of a kernel that moves here, report them to the server, and return a sentence about them.

    The server ends this kernel after a report that a variable cannot be loaded.
    """
    report: dict[str, Any] = {"number": 0, "failed": {}, "error": ""}
    loaded: dict[str, Any] = {}
    try:
        report["number"], report["failed"] = load_variables(loaded, path)
    except Exception as error:
        report["error"] = _one_line(error)
    shell.user_ns.update(loaded)

    def finish(*_: Any) -> None:
        """Undo that startup files have replaced variables, and that IPython hides all from before the first cell."""
        shell.events.unregister("pre_execute", finish)
        shell.user_ns.update(loaded)
        for name in loaded:
            shell.user_ns_hidden.pop(name, None)

    shell.events.register("pre_execute", finish)
    with contextlib.suppress(OSError):
        os.unlink(path)
    folder, name = os.path.split(path)
    write_file(os.path.join(folder, name.replace("variables", "loaded", 1)), report)
    return f"with {_count(report['number'])}"


def write_file(path: str, content: dict[str, Any]) -> None:
    """Write a file that appears at once with its whole content."""
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file)
    os.replace(f"{path}.new", path)


def _count(number: int) -> str:
    return f"{number} variable" + ("" if number == 1 else "s")


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _dill() -> Any:
    """Return the module that saves functions and classes of a notebook as well. Raise GpuShareError."""
    try:
        import dill
    except ImportError:
        raise GpuShareError(
            "a move to another node needs the package dill in the kernels' environment: run %pip install dill"
        ) from None
    return dill
