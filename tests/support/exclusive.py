"""Marker `@pytest.mark.exclusive` for a test that runs while no other test of the same run does.

The marker is for tests that compare times of this machine, where another test's work would be measured as well.
Other programs on the machine still disturb the times, so these tests are in the nightly tier.
Under pytest-xdist, every test holds a lock of the run, and an `exclusive` test holds that lock exclusively.
A test that waits for the lock holds a second lock meanwhile.
Therefore a sequence of other tests cannot starve an `exclusive` test.
An exclusive test keeps the lock for a next exclusive test, which then needs no wait for tests of other workers.
The locks end with their process, and child processes do not inherit them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

LOCK_FOLDER_VARIABLE = "GPUSHARE_TEST_LOCKS"  # pytest-xdist's controller sets it for its workers
kept_locks: list[int] = []  # at most one: the descriptor of the lock that an exclusive test keeps for the next one


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ.pop(LOCK_FOLDER_VARIABLE, None)  # of a run whose test has started this run
        if config.getoption("numprocesses", None):
            os.environ[LOCK_FOLDER_VARIABLE] = tempfile.mkdtemp(prefix="gpushare-locks-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if LOCK_FOLDER_VARIABLE in os.environ and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(LOCK_FOLDER_VARIABLE), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run exclusive tests last, when few other tests delay them, and refuse such a test of the short tier."""
    for item in items:
        if is_exclusive(item) and not item.get_closest_marker("nightly"):
            raise pytest.UsageError(f"{item.nodeid} is exclusive, and must be marked `nightly` as well")
    if LOCK_FOLDER_VARIABLE in os.environ:
        items.sort(key=is_exclusive)


# The outermost hook, so that the wait does not count for the test's time limit.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    folder = os.environ.get(LOCK_FOLDER_VARIABLE)
    if not folder:
        return (yield)
    running = (
        kept_locks.pop() if kept_locks else lock_run(folder, fcntl.LOCK_EX if is_exclusive(item) else fcntl.LOCK_SH)
    )
    try:
        return (yield)
    finally:
        if is_exclusive(item) and nextitem and is_exclusive(nextitem):
            kept_locks.append(running)
        else:
            os.close(running)


def lock_run(folder: str, kind: int) -> int:
    """Return a descriptor of the run's lock file once the file is locked."""
    running = os.open(Path(folder, "running"), os.O_RDWR | os.O_CREAT)
    with Path(folder, "next").open("a+b") as waiting:
        fcntl.lockf(waiting, fcntl.LOCK_EX)
        fcntl.lockf(running, kind)
    return running


def is_exclusive(item: pytest.Item) -> bool:
    return item.get_closest_marker("exclusive") is not None
