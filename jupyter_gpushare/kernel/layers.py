"""Quotas that hold for a while: what one cell changes is taken back when it ends, whatever happens meanwhile.

What somebody else changes while such a quota holds (the panel, `%gpushare quota` in the cell itself) is meant to
stay: it is left alone. Cells overlap (subshells, nested runs), so each change is a layer over a base.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import sys
import threading
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from .errors import GpuShareError, Refused, Unreachable
from .texts import quota_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .calls import Calls

PATIENCE = 3.0  # seconds for which a cell's beginning waits for a coordinator that is away
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 10.0  # seconds between attempts to take back
KEPT = 7 * 86400.0  # seconds for which a client's file waits for it to come back


class Layer:
    """One temporary change. `values` are the coordinator's words for it, None while they are not known."""

    def __init__(self, keys: set[str], values: dict[str, Any] | None = None) -> None:
        self.keys = keys
        self.values = values
        self.over = False


class Layers:
    """The temporary changes of one client's quota.

    `prefix` is that of a file which remembers them, "" for none: a kernel that is restarted in the middle of a cell
    takes back what its predecessor changed.
    """

    def __init__(self, calls: Calls, prefix: str = "") -> None:
        self._calls = calls
        self._prefix = prefix
        self._place = f"{prefix}{os.getpid()}.json" if prefix else ""
        self._lock = threading.RLock()
        self._base: dict[str, Any] = {}  # what holds where no layer does; of the keys of layers only
        self._layers: list[Layer] = []  # later ones lie above
        self._retrying = False
        self._process = os.getpid()

    def recover(self) -> None:
        """Take back what a kernel of this client that ended in the middle of a cell has left."""
        for left in glob.glob(glob.escape(self._prefix) + "*.json") if self._prefix else []:
            try:
                with open(left, encoding="utf-8") as file:
                    kept = json.load(file)
                base, values = dict(kept["base"]), dict(kept["values"])
                if _began(int(kept["process"])) == kept["began"]:
                    continue  # it runs: this kernel is one of several processes of the client
                os.replace(left, self._place)
                os.utime(self._place)  # it has come back: nobody's leavings
            except (OSError, ValueError, KeyError, TypeError):
                continue
            self._base = {**base, **self._base}
            layer = Layer(set(base), values)
            layer.over = True
            self._layers.append(layer)
            self._take_back_later()

    def begin(self, changes: Mapping[str, Any]) -> Layer:
        """Change the quota until `end`. Raises GpuShareError, and has changed nothing then."""
        deadline = monotonic() + PATIENCE
        while True:
            try:
                return self._begin(changes)
            except Unreachable:
                if monotonic() > deadline:
                    raise
            sleep(FIRST_PAUSE)

    def end(self, layer: Layer) -> None:
        """Take a change back, now or as soon as the coordinator answers."""
        if os.getpid() != self._process:
            return  # a fork's child, which leaves the cell as well
        layer.over = True
        try:
            self._settle()
        except (GpuShareError, KeyboardInterrupt):
            self._take_back_later()

    def _begin(self, changes: Mapping[str, Any]) -> Layer:
        with self._lock:
            self._settle()
            before = self._calls.quota({})
            layer = Layer(set(changes))
            self._base = {**{key: before[key] for key in changes}, **self._base}
            self._layers.append(layer)
            try:
                after = self._calls.quota(changes)
                layer.values = {key: after[key] for key in changes}
                self._keep()
            except Refused:  # it has changed nothing
                self._layers.remove(layer)
                self._base = {key: value for key, value in self._base.items() if self._touched(key)}
                raise
            except BaseException:  # perhaps it has: an interrupt, or no answer in time
                self.end(layer)
                raise
            return layer

    def _settle(self) -> None:
        """Bring the quota to what the layers that are not over say."""
        with self._lock:
            if not self._layers:
                return
            now = self._calls.quota({})
            self._heed(now)
            left = [layer for layer in self._layers if not layer.over]
            wanted = {key: self._value(key, left) for key in self._base}
            changes = {key: value for key, value in wanted.items() if now[key] != value}
            if changes:
                self._set(changes, now)
            self._layers = left
            self._base = {key: value for key, value in self._base.items() if self._touched(key)}
            self._keep()

    def _heed(self, now: dict[str, Any]) -> None:
        """What is neither the base nor ours was changed by somebody else: that is the base from now on."""
        for key in list(self._base):
            touching = [layer for layer in self._layers if key in layer.keys]
            if any(layer.values is None for layer in touching):
                continue
            if now[key] != self._value(key, self._layers):
                self._base[key] = now[key]
                for layer in touching:
                    layer.keys.discard(key)

    def _value(self, key: str, layers: list[Layer]) -> Any:
        for layer in reversed(layers):
            if key in layer.keys and layer.values is not None:
                return layer.values[key]
        return self._base[key]

    def _touched(self, key: str) -> bool:
        return any(key in layer.keys for layer in self._layers)

    def _set(self, changes: dict[str, Any], now: dict[str, Any]) -> None:
        """All together if that goes, else what goes; the rest stays and is told."""
        one_by_one = [{key: value} for key, value in changes.items()]
        for part in [changes, *one_by_one] if len(changes) > 1 else one_by_one:
            try:
                self._calls.quota(part)
                if part is changes:
                    return
            except Refused as refused:
                if refused.reason == "unknown_client":  # of a coordinator that is new; we shall be known soon
                    raise
                if part is not changes:
                    _tell(part, now, refused)

    def _take_back_later(self) -> None:
        with self._lock:
            if self._retrying:
                return
            threading.Thread(target=self._retry, name="gpushare-quota", daemon=True).start()
            self._retrying = True

    def _retry(self) -> None:
        pause = FIRST_PAUSE
        while True:
            sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                try:
                    self._settle()
                except GpuShareError:
                    continue
                except Exception:
                    self._retrying = False  # the next cell tries again
                    raise
                self._retrying = False
                return

    def _keep(self) -> None:
        if not self._place:
            return
        with contextlib.suppress(OSError):
            if self._layers:
                values = {key: self._value(key, self._layers) for key in self._base}
                os.makedirs(os.path.dirname(self._place), mode=0o700, exist_ok=True)
                with open(self._place, "w", encoding="utf-8") as file:
                    process = {"process": self._process, "began": _began(self._process)}
                    json.dump({**process, "base": self._base, "values": values}, file)
            else:
                os.unlink(self._place)


def tidy(folder: str, beginning: str) -> None:
    """Remove the files, named `beginning`… there, of kernels that are gone and whose clients have not come back."""
    for left in glob.glob(os.path.join(glob.escape(folder), glob.escape(beginning) + "*.json")):
        with contextlib.suppress(OSError):
            if time() - os.stat(left).st_mtime > KEPT and not _runs(left):
                os.unlink(left)


def _runs(place: str) -> bool:
    """Whether the process that a file is of runs; one that can't be understood is nobody's. Raises OSError."""
    try:
        with open(place, encoding="utf-8") as file:
            kept = json.load(file)
        return bool(_began(int(kept["process"])) == kept["began"])
    except (ValueError, KeyError, TypeError):
        return False


def _began(process: int) -> str:
    """When a process began, as the system tells it: of those with its number, this one. "" if there is none."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            return "" if fields[0] in "ZX" else fields[19]  # ended, and nobody has asked for its status
    except (OSError, IndexError):
        return ""


def _tell(change: dict[str, Any], now: dict[str, Any], refused: Refused) -> None:
    stays, meant = quota_line({key: now[key] for key in change}), quota_line(change)
    print(f"gpushare: {stays} stays after %%gpushare, instead of {meant}: {refused}", file=sys.stderr)
