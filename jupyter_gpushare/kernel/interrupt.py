"""The stop button while a GPU call waits in a cell that awaits.

ipykernel's handler of SIGINT for such a cell raises nothing: it has the event loop cancel the cell. A call that
waits for the GPU keeps the loop from running, so the cell would stop with its turn only. In a wait, and only there,
KeyboardInterrupt is raised as in any other cell.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from functools import wraps
from typing import Any


def install(shell: Any) -> None:
    """Change nothing without the shim."""
    waits = getattr(ctypes.CDLL(None), "gpushare_waits", None)
    if waits is not None:
        shell.run_cell_async = _interruptible(shell.run_cell_async, waits)


def _interruptible(run_cell_async: Any, waits: Any) -> Any:
    @wraps(run_cell_async)
    async def run(*args: Any, **options: Any) -> Any:
        outer = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        if not main or not callable(outer) or outer is signal.default_int_handler:
            return await run_cell_async(*args, **options)

        def stop(number: int, frame: Any) -> Any:
            if waits():
                raise KeyboardInterrupt
            return outer(number, frame)

        signal.signal(signal.SIGINT, stop)
        try:
            return await run_cell_async(*args, **options)
        finally:
            if signal.getsignal(signal.SIGINT) is stop:
                signal.signal(signal.SIGINT, outer)

    return run
