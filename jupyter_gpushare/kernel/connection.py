"""Connections of a kernel to the coordinator.

`request` sends one request on a connection of its own.
`KernelConnection` lasts as long as the kernel: it registers the kernel with the coordinator and carries the reports of
cells and the cell quotas. The connection also starts a coordinator if none answers.
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
from hashlib import blake2b
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from .errors import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY_SECONDS = 0.25  # between attempts to connect
REFUSED_RETRY_SECONDS = 5.0  # between attempts to connect with a coordinator that has refused the kernel
QUOTA_TIMEOUT_SECONDS = 5.0  # for the answer to a cell quota
REVERT_TIMEOUT_SECONDS = 2.0  # for the answer to the end of a cell quota, which comes into force in any case
START_GRACE_SECONDS = 1.0  # for another process to restart the coordinator before this kernel does
MIN_START_INTERVAL_SECONDS, MAX_START_INTERVAL_SECONDS = 15.0, 240.0  # between two starts by one kernel
ANSWER_TIMEOUT_SECONDS = 5.0  # a coordinator on a busy machine may be delayed for seconds

# Variables that the coordinator must not inherit from the kernel: the client's identity, and the kernel's preparation.
_IDENTITY_VARIABLES = {f"GPUSHARE_{name}" for name in ("CLIENT", "TOKEN", "LABEL", "QUOTA", "NOTE", "PREPARED")}
_KERNEL_VARIABLES = {"LD_PRELOAD", "PYTHONSTARTUP", "GPUSHARE_STARTUP_CHAIN", "JPY_PARENT_PID"}


def request(path: str, message: dict[str, Any], timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
    """Send one request and return its result; `timeout` is in seconds. Raise Unreachable or Refused.

    After the timeout, the function closes the connection, because the coordinator drops requests of closed connections.
    """
    outcome = "nothing was changed"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(timeout)
            connection.connect(path)
            connection.sendall(_encode(dict(message, id=1)))
            outcome = Unreachable.UNKNOWN_OUTCOME
            with connection.makefile("rb") as lines:
                for line in lines:
                    answer = json.loads(line) if line.strip() else {}
                    if answer.get("type") == "error":
                        raise Refused(answer.get("message", "refused"), answer.get("reason", "refused"))
                    if answer.get("type") == "reply":
                        return answer.get("result")
        except socket.timeout:  # no TimeoutError before Python 3.10
            if _withdraw(connection):
                outcome = "the request was withdrawn"
            raise Unreachable(f"the coordinator at {path} did not answer within {timeout:g} s", outcome) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise Unreachable(f"no coordinator answers at {path}: {reason}", outcome) from None
    raise Unreachable(f"the coordinator at {path} closed the connection", outcome)


def _withdraw(connection: socket.socket) -> bool:
    """Close the connection, and return true if the coordinator has read nothing of the request."""
    import fcntl  # here, because most kernels never need the modules
    import termios

    _shutdown(connection)
    try:
        unread = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except OSError:
        return False
    return any(unread)


class CellQuota:
    """Change of the quota for one cell, with the coordinator's last answer."""

    def __init__(self, number: int, request: str, changes: Mapping[str, Any]) -> None:
        self.message: dict[str, Any] = {"number": number, "request": request, "changes": dict(changes)}
        self.answered = threading.Event()
        self.result: dict[str, Any] = {}
        self.error: Refused | None = None


class KernelConnection:
    """Permanent connection of the kernel with the coordinator.

    A daemon thread reconnects, and then repeats the reports of the last end, of running cells and of their quotas.
    `state` is "connecting", "attached", "away" or "refused", and `reason` is a sentence on the last two.
    Any thread may call `begin` and `end`, which never raise and never wait for the coordinator.
    """

    def __init__(
        self, path: str, attach: dict[str, Any], argv: list[str] | None = None, failed_start: str = ""
    ) -> None:
        """Create a connection. `failed_start` is a sentence on a coordinator that has ended at its start, or ""."""
        self.path = path
        self._failed_start = failed_start
        self.state = "connecting"
        self.reason = ""
        self._client = attach.get("client", "")
        self._attach = _encode(dict(attach, type="attach"))
        self._argv = argv or []
        self._next_start = monotonic() + START_GRACE_SECONDS
        self._start_interval = MIN_START_INTERVAL_SECONDS
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None
        self._hash_key = str(attach.get("token", "")).encode()[: blake2b.MAX_KEY_SIZE]
        self._running: dict[str, dict[str, str]] = {}  # requests that run, with the names of their cells
        self._sent_requests: set[str] = set()
        self._numbers = itertools.count(1)
        self._quotas: dict[int, CellQuota] = {}  # changes in force
        self._sent_quotas: set[int] = set()
        self._unanswered: dict[int, CellQuota] = {}  # changes without an answer so far
        self._last_ended = ""  # the request that ended last
        self._memory_is_short = False  # of a device of the client, as the coordinator reports
        self._closed = False
        self._thread = threading.Thread(target=self._maintain, name="gpushare-attach", daemon=True)
        # Debuggers must not stop or trace this thread.
        self._thread.pydev_do_not_trace = True  # type: ignore[attr-defined]
        self._thread.is_pydev_daemon_thread = True  # type: ignore[attr-defined]

    def start(self) -> None:
        """Start the thread."""
        os.register_at_fork(after_in_child=self._reset_in_child)
        self._thread.start()

    def begin(self, request: str, cell_id: str = "", text: str = "") -> None:
        """Report that a request starts to run.

        `cell_id` is the notebook's cell of the request, or "" if unknown. A hash of `text` leaves the kernel, with the
        client's token as the key, so that no other user can find out a text by trial.
        """
        text_hash = text and blake2b(text.encode("utf-8", "replace"), digest_size=8, key=self._hash_key).hexdigest()
        with self._lock:
            self._running[request] = {"cell_id": cell_id, "text_hash": text_hash}
            if self._last_ended == request:  # an id that is used again
                self._last_ended = ""
            self._send_changes()

    def end(self, request: str) -> None:
        """Report that a request has ended."""
        with self._lock:
            self._running.pop(request, None)
            self._last_ended = request
            self._send_changes()

    def runs_alone(self, request: str) -> bool:
        """Return whether no other request runs."""
        return self._running.keys() <= {request}

    def may_release_caches(self, request: str) -> bool:
        """Return whether memory is short and no other request runs than `request`, which ends now."""
        return self._memory_is_short and self._running.keys() == {request}

    def set_quota(self, request: str, changes: Mapping[str, Any]) -> CellQuota:
        """Change the quota until `unset_quota`. Raise Refused or Unreachable if nothing has changed."""
        number = next(self._numbers)
        quota = self._quotas[number] = self._unanswered[number] = CellQuota(number, request, changes)
        try:
            self._send_changes()
            if not quota.answered.wait(QUOTA_TIMEOUT_SECONDS):
                problem = (
                    self.reason or f"the coordinator at {self.path} did not answer within {QUOTA_TIMEOUT_SECONDS:g} s"
                )
                raise Unreachable(problem, "the request was withdrawn")
            if quota.error:
                raise quota.error
        except BaseException:
            self._quotas.pop(number, None)
            self._send_changes()
            raise
        # After a restart, the coordinator must set the same values and restore the values that they replace.
        values = {key: quota.result[key] for key in changes}
        quota.message.update(changes=values, replaced=quota.result["replaced"])
        return quota

    def unset_quota(self, quota: CellQuota) -> list[str]:
        """Undo a change, now or as soon as a coordinator answers. Return sentences on changes that remain."""
        if self._closed:
            return []  # The child of a fork ends the cell as well.
        number = quota.message["number"]
        quota.result = {}
        quota.answered.clear()
        self._quotas.pop(number, None)
        self._unanswered[number] = quota
        self._send_changes()
        if self._socket is not None:
            quota.answered.wait(REVERT_TIMEOUT_SECONDS)
        self._unanswered.pop(number, None)
        return list(quota.result.get("stays", []))

    def _send_changes(self) -> None:
        """Send all changes since the last report, also those that an interrupt has prevented from being sent."""
        with self._lock:
            connection = self._socket
            if connection is None:
                return
            running, quotas = dict(self._running), dict(self._quotas)
            ended, started = self._sent_requests - running.keys(), running.keys() - self._sent_requests
            lines = b"".join(
                [self._encode_quota({"number": one}) for one in self._sent_quotas - quotas.keys()]
                + [_encode_cell("end", one) for one in ended]
                + [_encode_cell("start", one, **running[one]) for one in started]
                + [self._encode_quota(quotas[one].message) for one in sorted(quotas.keys() - self._sent_quotas)]
            )
            self._sent_requests, self._sent_quotas = set(running), set(quotas)
            try:
                whole = connection.send(lines, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) == len(lines)
            except OSError:
                whole = False
            if not whole:
                # The coordinator hangs or has exited. The end of the connection ends the requests of this kernel.
                self._socket = None
                _shutdown(connection)

    def _maintain(self) -> None:
        while not self._closed:
            try:
                connection = self._connect()
            except OSError as error:
                self._set_away(
                    self._failed_start or f"no coordinator answers at {self.path}: {error.strerror or error}"
                )
                self._start_coordinator()
                sleep(RETRY_SECONDS)
                continue
            with contextlib.suppress(OSError, ValueError):
                self._listen(connection)
            with self._lock:
                self._socket = None
            connection.close()
            if self.state != "refused":
                self._set_away(f"the coordinator at {self.path} closed the connection")
            self._next_start = max(self._next_start, monotonic() + START_GRACE_SECONDS)
            sleep(REFUSED_RETRY_SECONDS if self.state == "refused" else RETRY_SECONDS)

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(ANSWER_TIMEOUT_SECONDS)
            connection.connect(self.path)
            # The socket blocks from here on for the reader; senders use MSG_DONTWAIT.
            connection.settimeout(None)
            with self._lock:
                connection.send(self._attach, socket.MSG_NOSIGNAL)
                # After a restart, a coordinator takes a kernel with a turn to be working until a request has ended.
                # So the kernel reports the last end again, which the earlier coordinator may not have received.
                self._sent_requests, self._sent_quotas = {self._last_ended} - {""}, set()
                self._memory_is_short = False
                self._socket = connection
                self._send_changes()
        except OSError:
            connection.close()
            raise
        return connection

    def _listen(self, connection: socket.socket) -> None:
        """Receive the coordinator's answers until the connection ends."""
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        if not poll.poll(ANSWER_TIMEOUT_SECONDS * 1000):
            self._set_away(f"the coordinator at {self.path} does not answer")
        buffer = b""
        while True:
            data = connection.recv(65536)
            if not data:
                return
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                self._receive(json.loads(line) if line.strip() else {})

    def _receive(self, answer: dict[str, Any]) -> None:
        if answer.get("id"):
            self._on_answer(answer)
        elif answer.get("type") == "welcome":
            self.state, self.reason, self._start_interval = "attached", "", MIN_START_INTERVAL_SECONDS
            self._failed_start = ""
        elif answer.get("type") == "memory_shortage":
            self._memory_is_short = bool(answer.get("is_short"))
        elif answer.get("type") == "error":
            self.state, self.reason = "refused", str(answer.get("message", ""))

    def _on_answer(self, answer: dict[str, Any]) -> None:
        quota = self._unanswered.pop(int(answer["id"]), None)
        if quota is None:
            return
        if answer.get("type") == "error":
            quota.error = Refused(answer.get("message", "refused"), answer.get("reason", "refused"))
        else:
            quota.result = answer.get("result") or {}
        quota.answered.set()

    def _encode_quota(self, change: dict[str, Any]) -> bytes:
        return _encode({"type": "cell_quota", "id": change["number"], "client": self._client, **change})

    def _set_away(self, reason: str) -> None:
        self.state, self.reason = "away", reason

    def _start_coordinator(self) -> None:
        """Start a coordinator at most once in `_start_interval` seconds.

        If several kernels start a coordinator at the same time, only one of the coordinators stays.
        """
        if not self._argv or monotonic() < self._next_start:
            return
        self._next_start = monotonic() + self._start_interval
        self._start_interval = min(2 * self._start_interval, MAX_START_INTERVAL_SECONDS)
        env = {name: os.environ[name] for name in os.environ.keys() - _IDENTITY_VARIABLES - _KERNEL_VARIABLES}
        try:
            done = subprocess.run(
                [*self._argv, "--socket", self.path],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                timeout=10,
            )
            last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed no message"]
            how = f"the one started there ended with status {done.returncode}: {last[0]}"
            self._failed_start = f"no coordinator answers at {self.path}, and {how}" if done.returncode else ""
        except (OSError, subprocess.SubprocessError) as error:
            self._set_away(f"no coordinator answers at {self.path}, and none can be started: {error}")

    def _reset_in_child(self) -> None:
        """Close the connection in the child of a fork, because the child is no kernel and must not report cells."""
        self._closed = True
        self._lock = threading.RLock()
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


def _encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _encode_cell(state: str, request: str, **names: str) -> bytes:
    known = {field: name for field, name in names.items() if name}
    return _encode({"type": "cell", "state": state, "request": request, **known})


def _shutdown(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
