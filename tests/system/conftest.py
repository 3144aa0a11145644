"""A host of its own for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .host import Host
from .notebook import Notebook, starter


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """Without a coordinator yet. The test's own process lives on this host too."""
    folder = Path(tempfile.mkdtemp(prefix="gs-"))  # not pytest's: a socket's path has at most 107 bytes
    made = Host(folder)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    try:
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def quick(host: Host) -> Host:
    """With a coordinator whose turns are short."""
    host.start_coordinator("--time-quantum", "0.1")
    return host


@pytest.fixture
def patient(host: Host) -> Host:
    """With a coordinator whose turns end for other reasons than their quantum."""
    host.start_coordinator("--time-quantum", "20")
    return host


@pytest.fixture
def start(host: Host) -> Iterator[Callable[..., Notebook]]:
    """Start kernels; see `notebook.starter`."""
    with starter() as begin:
        yield begin
