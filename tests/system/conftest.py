"""Fixtures with a host of its own for each test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from .notebook_client import Notebook, kernel_starter
from .system_host import SystemHost, system_host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[SystemHost]:
    """Return a host without a coordinator. The test's own process is on this host too.

    The parameter, if there is one, is the memory of the simulated device in bytes.
    """
    with system_host(
        monkeypatch, functools.partial(SystemHost, memory=getattr(request, "param", 256 << 20))
    ) as new_host:
        yield new_host


@pytest.fixture
def default_settings_host(host: SystemHost) -> SystemHost:
    """Return a host with a coordinator that has the shipped defaults."""
    host.start_coordinator()
    return host


@pytest.fixture
def dual_host(host: SystemHost) -> SystemHost:
    """Return a host with two devices, and with a coordinator that has the shipped defaults."""
    host.devices = 2
    host.start_coordinator()
    return host


@pytest.fixture
def short_quantum_host(host: SystemHost) -> SystemHost:
    """Return a host for tests that need more changes of turns than the shipped turns have in the time of a test."""
    host.start_coordinator("--time-quantum", "0.1")
    return host


@pytest.fixture
def fcfs_host(host: SystemHost) -> SystemHost:
    """Return a host for tests in which one client must keep its turn, which is longer than any test.

    The shipped policy gives such a turn to the shorter cell of another client.
    """
    host.start_coordinator("--policy", "fcfs", "--time-quantum", "3600")
    return host


@pytest.fixture
def start(host: SystemHost) -> Iterator[Callable[..., Notebook]]:
    """Return a function that starts kernels; see `notebook_client.kernel_starter`."""
    with kernel_starter() as start_kernel:
        yield start_kernel


@pytest.fixture
def used_notebook(dual_host: SystemHost, start: Callable[..., Notebook], monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Return a notebook of mode `swap` with a variable, and with memory on one of the two devices."""
    monkeypatch.setenv("GPUSHARE_MEMORY_MODE", "swap")
    monkeypatch.setenv("GPUSHARE_SIM_DEVICES", "2")
    notebook = start()
    notebook.run("answer = 42")
    notebook.run("work(0.1)")
    return notebook
