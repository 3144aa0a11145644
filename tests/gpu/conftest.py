"""Fixtures of the tests on a card (`make test-gpu`), which run on a simulated device in `make test`."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator

import pytest

from ..conftest import gpu_problem
from ..driver_facts.harness import IS_GPU
from ..system.system_host import system_host
from .card_host import WORKING_SET, CardHost
from .report import part_of, register_report

# Seconds of each part on a card. The number bounds each test, and the later tests of the part are skipped.
PART_SECONDS = {
    "lookup": 20,
    "bypass": 60,
    "driver_facts": 120,  # of each worker
    "costs": 30,
    "trainings": 70,
    "graphs": 20,
    "frameworks": 130,
    "exits": 90,
    "hibernation": 60,
    "cgroup": 50,
    "benches": 200,
}
MAX_SECONDS = 500  # of all parts; tests that would begin later are skipped


class PartLimits:
    """Plugin that bounds the time of each part and of the run, so that a part that hangs does not stop the others."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._parts: dict[str, float] = {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            item.add_marker(pytest.mark.timeout(PART_SECONDS[part_of(item.nodeid)]))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        now, part = time.monotonic(), part_of(item.nodeid)
        if now - self._parts.setdefault(part, now) > PART_SECONDS[part]:
            pytest.skip(f"the part {part} has used its {PART_SECONDS[part]} s")
        if now - self._began > MAX_SECONDS:
            pytest.skip(f"the parts before have used the {MAX_SECONDS} s of the run")


def pytest_configure(config: pytest.Config) -> None:
    register_report(config)
    if IS_GPU:
        config.pluginmanager.register(PartLimits())


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[CardHost]:
    """Return a host without a coordinator; the parameter, if there is one, is its working set in bytes."""
    if IS_GPU and (problem := gpu_problem()):
        pytest.skip(f"needs a GPU: {problem}")
    failed_before = request.session.testsfailed
    kind = functools.partial(CardHost, working_set=getattr(request, "param", WORKING_SET))
    with system_host(monkeypatch, kind) as new_host:
        yield new_host
        if IS_GPU and request.session.testsfailed > failed_before:
            new_host.print_stacks()
        new_host.print_logs()
