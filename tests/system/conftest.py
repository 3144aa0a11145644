"""A host of its own for each test."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import pytest

from .notebook_client import Notebook, kernel_starter
from .system_host import SystemHost, system_host


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[SystemHost]:
    """Without a coordinator yet. The test's own process lives on this host too.

    The parameter, if there is one, is the memory of the simulated device in bytes.
    """
    with system_host(monkeypatch, functools.partial(SystemHost, memory=getattr(request, "param", 256 << 20))) as made:
        yield made


@pytest.fixture
def default_settings_host(host: SystemHost) -> SystemHost:
    """With a coordinator that has the shipped defaults."""
    (host.folder / "config" / "jupyter_gpushare_config.py").unlink()
    host.start_coordinator()
    return host


@pytest.fixture
def short_quantum_host(host: SystemHost) -> SystemHost:
    """With a coordinator whose turns are short."""
    host.start_coordinator("--time-quantum", "0.1")
    return host


@pytest.fixture
def long_quantum_host(host: SystemHost) -> SystemHost:
    """With a coordinator whose turns end for other reasons than their quantum."""
    host.start_coordinator("--time-quantum", "20")
    return host


@pytest.fixture
def start(host: SystemHost) -> Iterator[Callable[..., Notebook]]:
    """Start kernels; see `notebook.starter`."""
    with kernel_starter() as begin:
        yield begin
