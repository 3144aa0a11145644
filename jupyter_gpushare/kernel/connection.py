"""Talking to the coordinator from inside a kernel, with nothing but the standard library.

`request` is one question on a connection of its own. `Attachment` holds a connection for as long as the
kernel lives: over it the kernel is known to the coordinator, and the reports of its cells go.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import threading
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from .errors import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY = 0.25  # seconds between attempts to reach a coordinator
REFUSED_RETRY = 5.0
PATIENCE = 3.0  # seconds for which a cell with a quota of its own waits for a coordinator that is away
GRACE = 1.0  # seconds for which somebody else may bring one back, before we start one
FIRST_PAUSE, LONGEST_PAUSE = 15.0, 240.0  # seconds between two starts of a coordinator by one kernel
ANSWER_WITHIN = 2.0  # seconds

# What a coordinator that we start must not inherit: the client's identity, and what makes us a shared kernel.
_IDENTITY = {f"GPUSHARE_{name}" for name in ("CLIENT", "TOKEN", "LABEL", "QUOTA", "NOTE", "PREPARED")}
_OF_THE_KERNEL = {"LD_PRELOAD", "PYTHONSTARTUP", "GPUSHARE_STARTUP_CHAIN", "JPY_PARENT_PID"}


def request(path: str, message: dict[str, Any], timeout: float = ANSWER_WITHIN) -> Any:
    """Send one request and return its result. `timeout` in seconds. Raises Unreachable, Refused.

    One that isn't answered in time is withdrawn: the coordinator looks at none whose sender has hung up.
    """
    fate = "nothing was changed"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(_line(dict(message, id=1)))
            fate = "it is not known whether the request was carried out"
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = json.loads(line) if line.strip() else {}
                    if answer.get("type") == "error":
                        raise Refused(answer.get("message", "refused"), answer.get("reason", "refused"))
                    if answer.get("type") == "reply":
                        return answer.get("result")
        except socket.timeout:  # no TimeoutError before Python 3.10
            if _withdrawn(connection):
                fate = "the request was withdrawn"
            raise Unreachable(f"the coordinator at {path} did not answer within {timeout:g} s", fate) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no coordinator answers at {path}: {reason}", fate) from None
    raise Unreachable(f"the coordinator at {path} closed the connection", fate)


def _withdrawn(connection: socket.socket) -> bool:
    """Hang up; whether the other end has read nothing of what was sent, and so cannot have begun with it."""
    import fcntl  # only now: most kernels never need them
    import termios

    _shut(connection)
    try:
        unread = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return False
    return any(unread)


class CellQuota:
    """One change of the quota for one cell, and the coordinator's last answer."""

    def __init__(self, number: int, request: str, changes: Mapping[str, Any]) -> None:
        self.message: dict[str, Any] = {"number": number, "request": request, "changes": dict(changes)}
        self.answered = threading.Event()
        self.result: dict[str, Any] = {}
        self.error: Refused | None = None


class Attachment:
    """The kernel's standing connection. A daemon thread keeps it up and repeats which cells run, and their quotas.

    `state` is "connecting", "attached", "away" or "refused", and `reason` a sentence on the latter two.
    `begin` and `end` may be called from any thread; they never raise, and never wait for the coordinator.
    """

    def __init__(self, path: str, attach: dict[str, Any], argv: list[str] | None = None) -> None:
        self.path = path
        self.state = "connecting"
        self.reason = ""
        self._client = attach.get("client", "")
        self._attach = _line(dict(attach, type="attach"))
        self._argv = argv or []
        self._next_start = monotonic() + GRACE
        self._pause = FIRST_PAUSE
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._open: dict[str, str] = {}  # requests that run, with their cells
        self._told: set[str] = set()
        self._numbers = itertools.count(1)
        self._quotas: dict[int, CellQuota] = {}  # changes that hold
        self._told_quotas: set[int] = set()
        self._awaited: dict[int, CellQuota] = {}  # changes whose answer is awaited
        self._missed = ""  # the last request that ended while no coordinator was there to hear it
        self._over = False
        self._thread = threading.Thread(target=self._keep_up, name="gpushare-attach", daemon=True)
        # Debuggers are to leave this thread alone.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]

    def start(self) -> None:
        os.register_at_fork(after_in_child=self._forget_in_child)
        self._thread.start()

    def begin(self, request: str, cell_id: str = "") -> None:
        """A request starts to run; `cell_id`: which cell of the notebook it comes from, if that is known."""
        self._open[request] = cell_id
        self._tell()

    def end(self, request: str) -> None:
        """A request has ended."""
        self._open.pop(request, None)
        if self._socket is None:
            self._missed = request
        self._tell()

    def set_quota(self, request: str, changes: Mapping[str, Any]) -> CellQuota:
        """Change the quota until `unset_quota`. Raises Refused and Unreachable, and has changed nothing then."""
        number = next(self._numbers)
        quota = self._quotas[number] = self._awaited[number] = CellQuota(number, request, changes)
        try:
            self._tell()
            if not quota.answered.wait(PATIENCE):
                problem = self.reason or f"the coordinator at {self.path} did not answer within {PATIENCE:g} s"
                raise Unreachable(problem, "the request was withdrawn")
            if quota.error:
                raise quota.error
        except BaseException:
            self._quotas.pop(number, None)
            self._tell()
            raise
        # Another coordinator is to set the very same values, and to know what they replace.
        values = {key: quota.result[key] for key in changes}
        quota.message.update(changes=values, replaced=quota.result["replaced"])
        return quota

    def unset_quota(self, quota: CellQuota) -> list[str]:
        """Take a change back, now or as soon as a coordinator answers. Return sentences on what stays."""
        if self._over:
            return []  # a fork's child, which leaves the cell as well
        number = quota.message["number"]
        quota.result = {}
        quota.answered.clear()
        self._quotas.pop(number, None)
        self._awaited[number] = quota
        self._tell()
        if self._socket is not None:
            quota.answered.wait(ANSWER_WITHIN)
        self._awaited.pop(number, None)
        return list(quota.result.get("stays", []))

    def _tell(self) -> None:
        """Send what the coordinator does not know yet: also what an interrupt kept from being sent before."""
        with self._lock:
            connection = self._socket
            if connection is None:
                return
            running, quotas = dict(self._open), dict(self._quotas)
            ended, started = self._told - running.keys(), running.keys() - self._told
            lines = b"".join(
                [self._quota({"number": one}) for one in self._told_quotas - quotas.keys()]
                + [_cell("end", one) for one in ended]
                + [_cell("start", one, running[one]) for one in started]
                + [self._quota(quotas[one].message) for one in sorted(quotas.keys() - self._told_quotas)]
            )
            self._told, self._told_quotas = set(running), set(quotas)
            try:
                whole = connection.send(lines, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(lines)
            except OSError:
                whole = False
            if not whole:  # it hangs or is gone; the end of this connection ends our requests there
                self._missed = next(iter(ended), self._missed)
                self._socket = None
                _shut(connection)

    def _keep_up(self) -> None:
        while not self._over:
            try:
                connection = self._connect()
            except OSError as error:
                self._away(f"no coordinator answers at {self.path}: {error.strerror or error}")
                self._start_coordinator()
                sleep(RETRY)
                continue
            with contextlib.suppress(OSError, ValueError):
                self._listen(connection)
            with self._lock:
                self._socket = None
            connection.close()
            if self.state != "refused":
                self._away(f"the coordinator at {self.path} closed the connection")
            self._next_start = max(self._next_start, monotonic() + GRACE)
            sleep(REFUSED_RETRY if self.state == "refused" else RETRY)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_WITHIN)
            connection.connect(self.path)
            # Blocking from here on, for the reader; senders say MSG_DONTWAIT.
            connection.settimeout(None)
            with self._lock:
                connection.send(self._attach, socket.MSG_NOSIGNAL)
                # A coordinator that has adopted our turn takes us to work on until it hears of an end.
                self._told, self._missed = {self._missed} - {""}, ""
                self._told_quotas = set()
                self._socket = connection
            self._tell()
        except OSError:
            connection.close()
            raise
        return connection

    def _listen(self, connection: socket.socket) -> None:
        """Until the connection ends. The coordinator says little here: welcome, or an error."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if not poll.poll(ANSWER_WITHIN * 1000):
            self._away(f"the coordinator at {self.path} does not answer")
        buffer = b""
        while True:
            data = connection.recv(65536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line) if line.strip() else {})

    def _hear(self, answer: dict[str, Any]) -> None:
        if answer.get("id"):
            self._answer(answer)
        elif answer.get("type") == "welcome":
            self.state, self.reason, self._pause = "attached", "", FIRST_PAUSE
        elif answer.get("type") == "error":
            self.state, self.reason = "refused", str(answer.get("message", ""))

    def _answer(self, answer: dict[str, Any]) -> None:
        quota = self._awaited.pop(int(answer["id"]), None)
        if quota is None:
            return
        if answer.get("type") == "error":
            quota.error = Refused(answer.get("message", "refused"), answer.get("reason", "refused"))
        else:
            quota.result = answer.get("result") or {}
        quota.answered.set()

    def _quota(self, change: dict[str, Any]) -> bytes:
        return _line({"type": "cell_quota", "id": change["number"], "client": self._client, **change})

    def _away(self, reason: str) -> None:
        self.state, self.reason = "away", reason

    def _start_coordinator(self) -> None:
        """At most once in `_pause` seconds. If several kernels do it at once, one of the coordinators stays."""
        if not self._argv or monotonic() < self._next_start:
            return
        self._next_start = monotonic() + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        env = {name: os.environ[name] for name in os.environ.keys() - _IDENTITY - _OF_THE_KERNEL}
        try:
            subprocess.run(
                [*self._argv, "--socket", self.path],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                timeout=10,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self._away(f"no coordinator answers at {self.path}, and none can be started: {error}")

    def _forget_in_child(self) -> None:
        """A fork's child is no kernel: it must neither report cells nor keep the parent's connection open."""
        self._over = True
        self._lock = threading.Lock()
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _cell(state: str, request: str, cell_id: str = "") -> bytes:
    cell = {"type": "cell", "state": state, "request": request}
    return _line(dict(cell, cell_id=cell_id) if cell_id else cell)


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
