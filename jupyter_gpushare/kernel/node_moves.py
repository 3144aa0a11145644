"""Move of a kernel to another node of the Jupyter server: `%gpushare move NODE`.

No process moves. The kernel saves its variables and ends, and the server starts it anew on the other node with them.
The kernel's folder on the node gets `variables`, and then `move`, which has the name of the other node.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from jupyter_gpushare.units import format_size

from .errors import GpuShareError, UsageError

MAX_BYTES = 1 << 30  # of the saved variables, which go through the Jupyter server
_END_SECONDS = 0.5  # for the output of the cell to leave the kernel


class MoveBegun(Exception):
    """End of the cell that moves the kernel. IPython shows no traceback, and cells that wait do not run."""

    def _render_traceback_(self) -> list[str]:
        return []


class NodeMoves:
    """Moves of one kernel, which has the variables `env` from the node agent."""

    def __init__(self, shell: Any, env: dict[str, str]) -> None:
        self._shell = shell
        self._folder = env.get("GPUSHARE_KERNEL_FOLDER", "")
        self._node = env.get("GPUSHARE_NODE", "")
        self._nodes = [name for name in env.get("GPUSHARE_NODES", "").split(",") if name]

    def is_node(self, name: str) -> bool:
        """Return whether the kernel runs on a node, and `name` is a node rather than a device."""
        return bool(self._folder) and name in (*self._nodes, self._node)

    @property
    def hint(self) -> str:
        """Return the allowed nodes, for the message about an unknown device; "" without any."""
        return f" (other nodes for this kernel: {', '.join(self._nodes)})" if self._nodes else ""

    def move(self, node: str) -> None:
        """Save the variables, print what cannot be saved, and end the kernel. Raise GpuShareError, MoveBegun."""
        if node == self._node:
            raise UsageError(f"this kernel runs on {node} already")
        number, left_out = save_variables(self._shell, os.path.join(self._folder, "variables"))
        path = os.path.join(self._folder, "move")
        with open(f"{path}.new", "w") as file:
            json.dump({"node": node}, file)
        os.replace(f"{path}.new", path)
        print(f"This kernel moves to {node} with {number} variables.")
        for name, reason in left_out.items():
            print(f"Not taken along: {name} ({reason})")
        threading.Timer(_END_SECONDS, _end).start()
        raise MoveBegun(f"this kernel moves to {node}")


def save_variables(shell: Any, path: str) -> tuple[int, dict[str, str]]:
    """Write the user's variables to a file. Raise GpuShareError.

    Return the number of the variables, and by name the reasons why others cannot be saved. Objects that several
    variables share stay shared.
    """
    dill = _dill()
    variables = {
        name: value
        for name, value in shell.user_ns.items()
        if name not in shell.user_ns_hidden and not name.startswith("_")
    }
    left_out: dict[str, str] = {}
    try:
        content = dill.dumps(variables)
    except Exception:
        for name in list(variables):
            try:
                dill.dumps(variables[name])
            except Exception as error:
                left_out[name] = str(error) or type(error).__name__
                del variables[name]
        content = dill.dumps(variables)
    if len(content) > MAX_BYTES:
        raise UsageError(
            f"the variables of this kernel have {format_size(len(content))}, and {format_size(MAX_BYTES)} can move to "
            "another node: delete large ones first, or save them in files"
        )
    with open(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    os.replace(f"{path}.new", path)
    return len(variables), left_out


def restore_variables(shell: Any, path: str) -> str:
    """Read the variables of a kernel that has moved, and return a sentence about them. A failure keeps the file."""
    try:
        with open(path, "rb") as file:
            variables = _dill().load(file)
    except Exception as error:
        return f"its variables cannot be read and stay in {path}: {error}"
    shell.user_ns.update(variables)
    os.unlink(path)
    return f"with {len(variables)} variables"


def _dill() -> Any:
    """Return the module that saves functions and classes of a notebook as well. Raise GpuShareError."""
    try:
        import dill
    except ImportError:
        raise GpuShareError(
            "a move to another node needs the package dill in the kernel's environment: run %pip install dill"
        ) from None
    return dill


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
