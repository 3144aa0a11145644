"""Stop of one thread of a program between two of its system calls, by ptrace."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

import pytest

from ..support.threads import thread_names

_ATTACH, _DETACH, _SYSCALL = 16, 17, 24
_ALL_CHILDREN = 0x40000000  # __WALL: threads too
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def thread_named(pid: int, name: str) -> int:
    """Return the id of the thread with this name."""
    return next(thread for thread, found in thread_names(pid).items() if found == name)


@contextlib.contextmanager
def stopped_thread(thread: int, condition: Callable[[], bool]) -> Iterator[None]:
    """Stop a thread for the body; the other threads of its process run.

    The thread first goes on until `condition` is true at the begin or end of one of its system calls.
    The whole body runs in one thread of the test, as ptrace requires.
    """
    if _libc.ptrace(_ATTACH, thread, None, None) != 0:
        pytest.skip(f"ptrace cannot stop threads here: {os.strerror(ctypes.get_errno())}")
    os.waitpid(thread, _ALL_CHILDREN)
    try:
        while not condition():
            assert _libc.ptrace(_SYSCALL, thread, None, None) == 0
            os.waitpid(thread, _ALL_CHILDREN)
        yield
    finally:
        _libc.ptrace(_DETACH, thread, None, None)
