"""Pending start of a kernel, as the managers of jupyter_client keep it: the part that a start that waits must know.

A manager of several kernels has the pending starts in `_pending_kernels`, by kernel. The manager of one kernel has the
future `ready` of the latest start or shutdown. Functions get the manager of one kernel; its parent may be a manager of
several kernels.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any


class _Withdrawal:
    """Pending start that waits, which a manager of several kernels awaits before a shutdown. `task`: its task, if any.

    A kernel that restarts has no task in the manager.
    """

    def __init__(self, task: asyncio.Future[None] | None, withdraw: Callable[[], object]) -> None:
        self.task = task
        self._withdraw = withdraw

    def __await__(self) -> Generator[Any, Any, None]:
        self._withdraw()
        return (self.task or asyncio.sleep(0)).__await__()

    def cancel(self) -> None:
        self._withdraw()


@contextlib.contextmanager
def withdrawn_by_shutdown(manager: Any, kernel: str, withdraw: Callable[[], object]) -> Iterator[None]:
    """Let a shutdown of the kernel call `withdraw` during the context.

    A shutdown waits for the end of a first start otherwise. A shutdown of a restarting kernel fails, because it reads
    the result of the start that goes on.
    """
    pending = _pending_starts(manager)
    withdrawal = pending[kernel] = _Withdrawal(pending.get(kernel), withdraw)
    try:
        yield
    finally:
        if pending.get(kernel) is withdrawal:
            del pending[kernel]
            if withdrawal.task:
                pending[kernel] = withdrawal.task


@contextlib.contextmanager
def cancelled_by_interrupt() -> Iterator[None]:
    """Cancel the task at the stop key of a terminal, and raise KeyboardInterrupt then, as `asyncio.run` does.

    A blocking manager leaves the task as it is, and the task would go on with the next call of any manager. A blocking
    manager in a running event loop starts its kernel in another thread, which the stop key does not reach.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    has_stopped = False

    def on_stop(*_: object) -> None:
        nonlocal has_stopped
        signal.signal(signal.SIGINT, signal.default_int_handler)  # for a second stop
        if not loop.is_running() or task is None:
            raise KeyboardInterrupt
        has_stopped = True
        loop.call_soon_threadsafe(task.cancel)

    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, on_stop)
    try:
        yield
    except asyncio.CancelledError:
        if not has_stopped:
            raise
    finally:
        if signal.getsignal(signal.SIGINT) is on_stop:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if has_stopped:
        raise KeyboardInterrupt


def forget(manager: Any, kernel: str) -> None:
    """Remove a failed start, which remains otherwise, and keeps Jupyter Server from ending its other kernels."""
    _pending_starts(manager).pop(kernel, None)


async def wait_for_later_request(manager: Any, own: object) -> None:
    """Wait for a later start or shutdown of the kernel, whose result a failure of the earlier start would replace.

    `own` is the manager's `ready` of the earlier start.
    """
    while manager.ready is not own and not manager.ready.done():
        ready = manager.ready
        await asyncio.wait({ready if isinstance(ready, asyncio.Future) else asyncio.wrap_future(ready)})


def _pending_starts(manager: Any) -> dict[str, Any]:
    found: dict[str, Any] = getattr(getattr(manager, "parent", None), "_pending_kernels", {})
    return found
