"""Quotas that hold for a while, against a coordinator's part in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_gpushare.kernel.errors import Unreachable
from jupyter_gpushare.kernel.layers import KEPT, Layers, tidy


class Kept:
    """A coordinator's part in a quota."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {"share": 0.0, "limit": 1.0}

    def quota(self, changes: dict[str, Any]) -> dict[str, Any]:
        self.now.update(changes)
        return dict(self.now)


def test_a_forked_child_takes_nothing_back() -> None:
    kept = Kept()
    layers = Layers(kept)  # type: ignore[arg-type]
    layer = layers.begin({"share": 0.3})
    child = os.fork()
    if child == 0:
        layers.end(layer)
        os._exit(kept.now["share"] != 0.3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    layers.end(layer)
    assert kept.now["share"] == 0.0


def test_only_what_an_ended_process_left_is_taken_back(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    kept, prefix = Kept(), str(tmp_path / "client-")
    running = Layers(kept, prefix)  # type: ignore[arg-type]
    layer = running.begin({"share": 0.3})
    (place,) = tmp_path.iterdir()
    Layers(kept, prefix).recover()  # type: ignore[arg-type]
    assert place.exists() and kept.now["share"] == 0.3
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    content = {**json.loads(place.read_text()), "process": ended.pid}
    (tmp_path / f"client-{ended.pid}.json").write_text(
        json.dumps({**content, "base": {"limit": 0.7}, "values": {"limit": 1.0}})
    )
    Layers(kept, prefix + "x").recover()  # type: ignore[arg-type]
    assert kept.now == {"share": 0.3, "limit": 1.0}
    running.end(layer)
    assert kept.now["share"] == 0.0 and not place.exists()
    Layers(kept, prefix).recover()  # type: ignore[arg-type]
    eventually(lambda: kept.now == {"share": 0.0, "limit": 0.7})
    eventually(lambda: not list(tmp_path.iterdir()))


def test_a_failure_that_nobody_expected_does_not_end_all_retries(
    eventually: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Any] = []
    monkeypatch.setattr("threading.excepthook", ended.append)
    failures: list[Exception] = [Unreachable("away"), TypeError("no answer that is understood")]

    class Failing(Kept):
        def quota(self, changes: dict[str, Any]) -> dict[str, Any]:
            if self.now["share"] and failures:
                raise failures.pop(0)
            return super().quota(changes)

    kept = Failing()
    layers = Layers(kept)  # type: ignore[arg-type]
    layers.end(layers.begin({"share": 0.3}))
    eventually(lambda: ended)
    assert kept.now["share"] == 0.3
    failures.append(Unreachable("away"))
    layers.end(layers.begin({"limit": 0.9}))
    eventually(lambda: kept.now == {"share": 0.0, "limit": 1.0})


def test_old_files_of_clients_that_never_came_back_are_removed(tmp_path: Path) -> None:
    running = Layers(Kept(), str(tmp_path / "cell-quota-runs-"))  # type: ignore[arg-type]
    running.begin({"share": 0.3})
    (runs,) = tmp_path.iterdir()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    content = {**json.loads(runs.read_text()), "process": ended.pid}
    old, young, broken, other = (
        tmp_path / name for name in ("cell-quota-a-1.json", "cell-quota-b-2.json", "cell-quota-c-3.json", "d.json")
    )
    for place in (old, young, broken, other):
        place.write_text("{" if place is broken else json.dumps(content))
    for place in (runs, old, broken, other):
        os.utime(place, (time.time() - KEPT - 60,) * 2)
    tidy(str(tmp_path), "cell-quota-")
    assert set(tmp_path.iterdir()) == {runs, young, other}
