"""What one client may ask of its coordinator: the calls behind `%gpushare` and `import jupyter_gpushare`."""

from __future__ import annotations

import contextlib
import math
import operator
import os
import re
import time
from typing import TYPE_CHECKING, Any

from jupyter_gpushare.units import join_sizes, parse_pairs

from .connection import request
from .errors import NotShared, Unreachable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .display.report import Report
    from .display.turn_history import History

QUOTA_KEYS = {
    "share": "fraction of the device's time that is guaranteed under the policy fair: share=0.5",
    "limit": "largest fraction of the device's time: limit=0.9",
    "memory": "device memory that may be allocated: memory=8GiB, or a part of the device: memory=0.5",
    "resident": "device memory that may stay on the device while others wait: resident=2GiB, or a part: resident=0.25",
    "class": "class=online, or class=offline to let others go first (service= is the same)",
}
WIRE_KEYS = {"class": "service"}  # the word for people, and the wire's
SERVICE_CLASSES = ("online", "offline")
_MAX_HISTORY_PAGES = 1000  # of a history, at most


class ClientApi:
    """The calls of one client; `client` is "" in a program that does not share.

    `problem` returns a sentence on what isn't working, "" if all is well. Every call raises `NotShared`,
    `Unreachable` or `Refused`; each waits for an answer for 2 s at most.
    """

    def __init__(self, client: str, path: str, problem: Callable[[], str], program: str = "kernel") -> None:
        self.client = client
        self._program = program  # what it is called
        self.path = path
        self.problem = problem

    def request(self, message: dict[str, Any]) -> Any:
        """One request to the coordinator. Raises Unreachable, Refused."""
        if not self.path:
            raise Unreachable("no coordinator is known here (GPUSHARE_SOCKET is not set)")
        return request(self.path, message)

    def status(self) -> Report:
        """This client and the devices, also when no coordinator answers or this is no client."""
        from .display.report import Report

        problem = self.problem()
        try:
            return Report(self.request({"type": "status"}), self.client, problem, _process_age(), self._program)
        except Unreachable as error:
            if not (problem or self.client or self.path):
                problem = self._not_shared_message()
            return Report(None, self.client, problem or error.problem, program=self._program)

    def quota(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change the quota, or only read it if there are no changes; returns the whole.

        Beside the quota: `device_memory`, bytes that the client's devices have, and `notes`, sentences on what of the
        quota has no effect as the coordinator is set.
        """
        return dict(self._request_for_client("quota", changes=check_changes(changes)))

    def hold(self, seconds: float | str | None = None) -> dict[str, Any]:
        """`{"hold_seconds_left": float or None, "running": bool}`; None: as long as is allowed, 0: no longer."""
        return dict(
            self._request_for_client(
                "hold", **({} if seconds is None else {"seconds": _to_plain_value("hold", seconds)})
            )
        )

    def release(self) -> dict[str, Any]:
        """`{"released": bool, "turn": bool, "hold": bool}`: whether there was anything to give up, and what."""
        return dict(self._request_for_client("release"))

    def evict(self) -> int:
        """Bytes that were on the devices and leave now."""
        result = self._request_for_client("evict")
        return int(result["bytes"]) if result["evicting"] else 0

    def suspend(self) -> bool:
        return bool(self._request_for_client("suspend")["changed"])

    def resume(self) -> bool:
        return bool(self._request_for_client("resume")["changed"])

    def wait_status(self) -> dict[str, Any]:
        return dict(self._request_for_client("wait_status"))

    def history(self) -> History:
        """The turns and waits of the last minutes, as far as the coordinator keeps them."""
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

    def _request_for_client(self, kind: str, **fields: Any) -> Any:
        if not self.client:
            raise NotShared(self._not_shared_message())
        return self.request({"type": kind, "client": self.client, **fields})

    def _not_shared_message(self) -> str:
        reason = (
            self.problem() or "it was not started by the kernel 'Python 3 (shared GPU)' or by 'jupyter gpushare run'"
        )
        return f"this {self._program} isn't shared: {reason}"


def check_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a quota in the wire's words. Raises Mistake."""
    known: dict[str, Any] = {}
    for key, value in changes.items():
        if key not in QUOTA_KEYS and key not in WIRE_KEYS.values():
            raise UsageError(f"unknown quota key {key!r}: allowed are {', '.join(QUOTA_KEYS)}")
        wire = WIRE_KEYS.get(key, key)
        if wire in known:
            raise UsageError(f"{key!r} is given twice")
        known[wire] = _to_plain_value(key, value)
        if wire == "service" and str(known[wire]).lower() not in SERVICE_CLASSES:
            # The coordinator would say so as well, but not in the word that was written.
            raise UsageError(f"{key}={value!r} is unknown: allowed are {', '.join(SERVICE_CLASSES)}")
    return known


def _to_plain_value(name: str, value: Any) -> Any:
    """A value as JSON has it; NumPy's numbers become Python's. Raises Mistake."""
    if value is None or isinstance(value, str):
        return value
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and math.isfinite(value):
            return operator.index(value) if hasattr(value, "__index__") else float(value)
    raise UsageError(f"{name}: {value!r} is neither a finite number nor a text")


def _process_age() -> float:
    """Seconds since this process began, 0 if that is not known."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


def join_words(text: str) -> str:
    """`share = 0.5 memory=8 GiB` -> `share=0.5 memory=8GiB`."""
    tight = re.sub(r"(?<=\S)\s*=\s*(?=\S)", "=", text)
    return join_sizes(tight)


def parse_changes(text: str) -> dict[str, str]:
    """`share=0.5 class=offline` as changes of a quota; commas and quotes are as good. Raises Mistake."""
    try:
        changes = parse_pairs(join_words(text))
    except ValueError as error:
        raise UsageError(f"{error}; keys are {', '.join(QUOTA_KEYS)}") from None
    return check_changes(changes)
