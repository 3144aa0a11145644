"""Requests of one client to its coordinator, for `%gpushare` and `import jupyter_gpushare`, with checks of changes."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
import time
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.units import join_sizes, parse_pairs

from .connection import ANSWER_TIMEOUT_SECONDS, request
from .errors import NotShared, Unreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .display.report import Report
    from .display.turn_history import History

QUOTA_KEYS = {
    "share": "guaranteed fraction of the device's time while it has work, except under fcfs and best_effort: share=0.5",
    "limit": "largest fraction of the device's time: limit=0.9",
    "memory": "device memory that the kernel may allocate: memory=8GiB, or a fraction of the device: memory=0.5",
    "resident": "memory that may stay on the device while other clients wait (mode unified: always): resident=2GiB",
    "class": "class=online, or class=offline to run after online clients (service= is the same)",
}
WIRE_KEYS = {"class": "service"}  # from the users' word to the protocol's word
SERVICE_CLASSES = ("online", "offline")
_MAX_HISTORY_PAGES = 1000
_MOVE_SECONDS = 180.0  # a move that gets no turn or no room ends after 120 s


class ClientApi:
    """Requests of one client; `client` is "" in a program that does not share its GPU.

    `problem` returns a sentence on a fault of GPU sharing, or "".
    Each method but `move` waits at most 2 s for an answer.
    The methods can raise `NotShared`, `Unreachable` and `Refused`.
    """

    def __init__(self, client: str, path: str, problem: Callable[[], str], program: str = "kernel") -> None:
        self.client = client
        self._program = program  # the word for the client: "kernel" or "program"
        self.path = path
        self.problem = problem

    def request(self, message: dict[str, Any], timeout: float = ANSWER_TIMEOUT_SECONDS) -> Any:
        """Send one request to the coordinator; `timeout` is in seconds. Raise Unreachable or Refused."""
        if not self.path:
            raise Unreachable(f"this {self._program} has no coordinator (GPUSHARE_SOCKET is not set)")
        return request(self.path, message, timeout)

    def status(self) -> Report:
        """Return a report of this client and the devices, also without a coordinator or outside a client."""
        from .display.report import Report

        problem = self.problem()
        # The age before the request, because a slow answer would make the coordinator seem newer than the program.
        age = _process_age()
        try:
            return Report(self.request({"type": "status"}), self.client, problem, age, self._program)
        except Unreachable as error:
            if not (problem or self.client or self.path):
                problem = self._not_shared_message()
            return Report(None, self.client, problem or error.problem, program=self._program)

    def quota(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change the quota, or only read it without changes, and return the whole quota.

        The result also has `device_memory`, the bytes of the client's devices, and `notes`.
        The notes are sentences on parts of the quota that have no effect under the coordinator's settings.
        """
        return dict(self._request_for_client("quota", changes=check_changes(changes)))

    def hold(self, seconds: float | str | None = None) -> dict[str, Any]:
        """Hold the devices, and return `{"hold_seconds_left": float or None, "running": bool}`.

        Without `seconds`, the hold is as long as the settings allow; 0 ends the hold.
        """
        return dict(
            self._request_for_client(
                "hold", **({} if seconds is None else {"seconds": _to_plain_value("hold", seconds)})
            )
        )

    def release(self) -> dict[str, Any]:
        """Give up the turn and the hold, and return `{"released": bool, "turn": bool, "hold": bool}`.

        `turn` and `hold` are true if the client had one, and `released` is true if the client had either.
        """
        return dict(self._request_for_client("release"))

    def evict(self) -> int:
        """Move the client's movable memory off the devices, and return the bytes."""
        result = self._request_for_client("evict")
        return int(result["bytes"]) if result["evicting"] else 0

    def move(self, device: str | int) -> str:
        """Move the client with its memory to a device (UUID, index or name), and return the UUID of the device.

        The method returns when the client has moved. An interrupt withdraws the move, unless the driver has begun it.
        """
        try:
            result = self._request_for_client("move", timeout=_MOVE_SECONDS, device=str(device))
        except Unreachable as error:
            if not error.may_have_had_effect:
                raise
            outcome = (
                f"this {self._program} has moved only if the driver had begun the move: "
                "as soon as a coordinator answers, %gpushare shows its device"
            )
            raise Unreachable(error.problem, outcome) from None
        return str(result["device"])

    def suspend(self) -> bool:
        """Suspend the client, and return false if the client was suspended already."""
        return bool(self._request_for_client("suspend")["changed"])

    def resume(self) -> bool:
        """Resume the client, and return false if the client was not suspended."""
        return bool(self._request_for_client("resume")["changed"])

    def wait_status(self) -> dict[str, Any]:
        return dict(self._request_for_client("wait_status"))

    def history(self) -> History:
        """Return the turns and waits of the last minutes, as far as the coordinator keeps them."""
        from .display.turn_history import History

        entries: list[dict[str, Any]] = []
        after = 0
        for _ in range(_MAX_HISTORY_PAGES):
            page = self._request_for_client("history", after=after)
            entries += [one for one in page["entries"] if one["client"] == self.client]
            after = page["next"]
            if not page["more"]:
                break
        return History(entries, page["now"])

    def _request_for_client(self, kind: str, timeout: float = ANSWER_TIMEOUT_SECONDS, **fields: Any) -> Any:
        if not self.client:
            raise NotShared(self._not_shared_message())
        return self.request({"type": kind, "client": self.client, **fields}, timeout)

    def _not_shared_message(self) -> str:
        reason = (
            self.problem() or "it was not started by the kernel 'Python 3 (shared GPU)' or by 'jupyter gpushare run'"
        )
        return f"this {self._program} does not share its GPU: {reason}"


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes of a quota under the keys of the protocol. Raise UsageError."""
    checked: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in QUOTA_KEYS and key not in WIRE_KEYS.values():
            raise UsageError(f"unknown quota key {key!r}: allowed are {', '.join(QUOTA_KEYS)}")
        wire = WIRE_KEYS.get(key, key)
        if wire in checked:
            raise UsageError(f"{key!r} is given twice")
        checked[wire] = _to_plain_value(key, value)
        if wire == "service" and str(checked[wire]).lower() not in SERVICE_CLASSES:
            # The coordinator's error would name the protocol's key instead of the user's word.
            raise UsageError(f"{key}={value!r} is unknown: allowed are {', '.join(SERVICE_CLASSES)}")
    return checked


def _to_plain_value(name: str, value: Any) -> Any:
    """Return a value of JSON; NumPy's numbers become Python's numbers. Raise UsageError."""
    if value is None or isinstance(value, str):
        return value
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(value):
            return operator.index(value) if hasattr(value, "__index__") else float(value)
    raise UsageError(f"{name}: {value!r} is neither a finite number nor a text")


def _process_age() -> float:
    """Return the seconds since this process started, or 0 if its start is unknown."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def join_words(text: str) -> str:
    """Remove the blanks within pairs and sizes: `share = 0.5 memory=8 GiB` becomes `share=0.5 memory=8GiB`."""
    tight = re.sub(r"(?<=\S)\s*=\s*(?=\S)", "=", text)
    return join_sizes(tight)


def parse_changes(text: str) -> dict[str, str]:
    """Parse a text such as `share=0.5 class=offline` into changes of a quota. Raise UsageError.

    The text may have commas between the pairs, and quotes around values.
    """
    try:
        changes = parse_pairs(join_words(text))
    except ValueError as error:
        raise UsageError(f"{error}; keys are {', '.join(QUOTA_KEYS)}") from None
    return check_changes(changes)
