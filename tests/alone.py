"""`@pytest.mark.alone`: while such a test runs, no other test of the same run does, however many run in parallel.

The marker is for tests that compare times of this machine, where another test's work would be measured as well.
Work of other programs on a shared machine is measured all the same.
Therefore such a test, and no other, has three attempts, each with fixtures of its own.
Every test holds a lock of the run, and an `alone` test holds that lock exclusively.
A test that waits for the lock holds a second lock meanwhile.
Therefore a sequence of other tests cannot starve an `alone` test.
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

RERUNS = 2  # attempts after a failed one
FOLDER = "GPUSHARE_TEST_LOCKS"  # given by pytest-xdist's controller to its workers


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="gpushare-locks-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in os.environ and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give `alone` tests their attempts, and place them last, where few other tests are left to wait for."""
    for item in items:
        if is_alone(item):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
    if FOLDER in os.environ:
        items.sort(key=is_alone)


# Around everything else: the wait is no part of the test's time limit.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    folder = os.environ.get(FOLDER)
    if not folder:
        return (yield)
    with Path(folder, "running").open("a+b") as running:
        with Path(folder, "next").open("a+b") as waiting:
            fcntl.lockf(waiting, fcntl.LOCK_EX)
            fcntl.lockf(running, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        return (yield)


def is_alone(item: pytest.Item) -> bool:
    return item.get_closest_marker("alone") is not None
