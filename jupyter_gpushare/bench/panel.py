"""Cost of an update of JupyterLab's panel in the browser, with 50 clients on 4 devices, and size of the extension.

The built extension runs in a real JupyterLab and a real Chromium.
A synthetic coordinator behind the server sends changing snapshots, eight a second.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .support.synthetic_host import SNAPSHOTS_PER_SECOND, SyntheticHost, serving

CLIENTS, DEVICES, UPDATES = 50, 4, 200
_ROOT = Path(__file__).resolve().parent.parent.parent
_BUILT_EXTENSION = _ROOT / "jupyter_gpushare" / "labextension" / "static"
_REQUIREMENTS = {
    "labextension/ui-tests/panel-bench.mjs": "a clone of the repository",
    "labextension/node_modules/playwright-core": "the packages of labextension/ ('make jest' installs them)",
    "jupyter_gpushare/labextension/static": "the built extension ('make labextension')",
}
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_MAX_SECONDS = 300.0  # for the browser's part of the measurement


def measure(device: str, rounds: int) -> dict[str, Any]:
    """Return `{"clients", "devices", "updates", "arrived", "script_ms", "main_ms", "idle_ms", "bundle_bytes"}`.

    Times are milliseconds per update as `{"p50", "p95"}`, and `rounds` is the number of updates.
    `script_ms` is the time from a message's arrival until the document has changed.
    `main_ms` is the processor time of the page's main thread between two messages, with drawing.
    `idle_ms` is the same without messages, and `bundle_bytes` has all scripts of the extension, gzipped.
    Raises RuntimeError without a clone, Node.js, Chromium or the built extension, and if the browser fails.
    """
    node, chromium = _find_tools()
    updates = rounds or UPDATES
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-") as name:
        socket = str(Path(name) / "c.sock")
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "CHROMIUM": chromium,
            "GPUSHARE_BENCH_SOCKET": socket,
            "GPUSHARE_BENCH_UPDATES": str(updates),
            "GPUSHARE_BENCH_RATE": str(SNAPSHOTS_PER_SECOND),
        }
        with serving(socket, SyntheticHost(CLIENTS, DEVICES)):
            figures = _run_browser([node, str(_ROOT / "labextension" / "ui-tests" / "panel-bench.mjs")], environment)
    return {
        "clients": CLIENTS,
        "devices": DEVICES,
        "updates": updates,
        **figures,
        "bundle_bytes": bundle_bytes(),
    }


def bundle_bytes(folder: Path = _BUILT_EXTENSION) -> int:
    """Return the bytes of all scripts that the extension can load, each gzipped as servers do."""
    return sum(len(gzip.compress(path.read_bytes(), 6)) for path in folder.glob("*.js"))


def format_figures(figures: dict[str, Any]) -> list[str]:
    """Format the figures as lines of text."""
    text = [f"{figures['arrived']} updates of {figures['clients']} clients on {figures['devices']} devices"]
    for name, what in (
        ("script_ms", "scripts of an update"),
        ("main_ms", "main thread with drawing"),
        ("idle_ms", "main thread without updates"),
    ):
        text.append(f"{what:>42}  p50 {figures[name]['p50']:6.2f} ms   p95 {figures[name]['p95']:6.2f} ms")
    return [*text, f"{'the extension, gzipped':>42}  {figures['bundle_bytes'] / 1000:.1f} kB"]


def _find_tools() -> tuple[str, str]:
    """Return the paths of Node.js and Chromium. Raises RuntimeError."""
    configured = os.environ.get("CHROMIUM")
    chromium = next(filter(None, map(shutil.which, [configured] if configured else _BROWSERS)), None)
    if chromium is None:
        names = configured or ", ".join(_BROWSERS)
        raise RuntimeError(f"this bench needs Chromium: {names} was not found (set CHROMIUM=/path/of/chromium)")
    node = shutil.which("node")
    if node is None:
        raise RuntimeError("this bench needs Node.js (>= 20): node was not found")
    for path, needed in _REQUIREMENTS.items():
        if not (_ROOT / path).exists():
            raise RuntimeError(f"{_ROOT / path} is missing: this bench needs {needed}")
    return node, chromium


def _run_browser(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """Run the browser and return its figures. Raises RuntimeError."""
    program = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        output, _ = program.communicate(timeout=_MAX_SECONDS)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the measurement in the browser did not end within {_MAX_SECONDS:g} s") from None
    finally:
        if program.poll() is None:
            program.terminate()  # the program then ends its server and its browser
            program.wait()
    if program.returncode:
        raise RuntimeError(f"the measurement in the browser ended with status {program.returncode}")
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures
