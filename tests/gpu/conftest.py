"""Fixtures of the tests on a card (`make test-gpu`), which run on a simulated device in `make test`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from ..conftest import gpu_problem
from ..driver_facts.harness import IS_GPU
from ..system.system_host import system_host
from .card_host import WORKING_SET, CardHost
from .limits import register_limits
from .report import register_report


def pytest_configure(config: pytest.Config) -> None:
    register_report(config)
    register_limits(config)


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
