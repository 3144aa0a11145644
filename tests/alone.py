"""`@pytest.mark.alone`: while such a test runs, no other test of the same run does, however many run in parallel.

It is for tests that compare times of this machine, where another test's work would be measured as well. What others
do on a shared machine is measured all the same, so such a test, and no other, fails when three attempts did, each with
fixtures of its own. Every test holds a lock of the run, an `alone` one exclusively. Who waits for it holds a second
lock meanwhile, so that a crowd of others can't keep an `alone` one waiting. The locks end with their process; children
have no part in them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

AGAIN = 2  # attempts after a failed one
BY_CHANCE = ("chaos", "faults", "hostile", "users")  # here one failure is a fault, whatever comes of the next attempt
FOLDER = "GPUSHARE_TEST_LOCKS"  # given by pytest-xdist's controller to its workers


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="gpushare-locks-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if FOLDER in os.environ and not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(FOLDER), ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They come last, so that they wait for others seldom."""
    for item in items:
        if is_alone(item):
            item.add_marker(pytest.mark.flaky(reruns=AGAIN))
        elif item.path.parent.name in BY_CHANCE:
            item.add_marker(pytest.mark.flaky(reruns=0))
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
