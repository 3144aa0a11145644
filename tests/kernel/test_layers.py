"""Quotas that hold for a while, against a coordinator's part in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_gpushare.kernel.layers import Layers


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
