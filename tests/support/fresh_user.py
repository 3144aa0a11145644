"""Environment of a fresh user on a fresh host, for tests that follow a document."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from jupyter_gpushare.launch import kernel_env

ROOT = Path(__file__).resolve().parents[2]


def fresh_environment(home: Path, own_host: Path) -> dict[str, str]:
    """Return the environment of a user with this home and the shipped kernelspec."""
    kernels = home / "share" / "kernels"
    kernels.mkdir(parents=True)
    (kernels / "python3-gpushare").symlink_to(kernel_env.PACKAGE / "kernelspec" / "python3-gpushare")
    left_out = ("JUPYTER_", "GPUSHARE_", "IPYTHON", "XDG_RUNTIME_DIR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {
        "HOME": str(home),
        "JUPYTER_PATH": os.pathsep.join(filter(None, [str(home / "share"), os.environ.get("JUPYTER_PATH")])),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "GPUSHARE_SOCKET": str(own_host / "run" / "fresh.sock"),
        "GPUSHARE_LOCK_DIR": str(own_host / "locks"),
        "GPUSHARE_SIM_STATE": str(home / "devices"),
    }
