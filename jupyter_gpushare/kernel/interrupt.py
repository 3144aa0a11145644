"""Interrupts of a GPU call that waits in a cell with `await`.

ipykernel's handler of SIGINT for such a cell does not raise KeyboardInterrupt: the event loop cancels the cell.
A call that waits for the GPU blocks the event loop, so the cell would stop only after it has got a turn.
During such a wait, this module raises KeyboardInterrupt as in any other cell.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from functools import wraps
from typing import Any


def install(shell: Any) -> None:
    """Install the handler if the process has the shim."""
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
