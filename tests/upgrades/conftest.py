"""The builds of `previous.txt`, each made once, and a host on which they meet this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ..system.host import own_host
from ..system.notebook import Notebook, starter
from .builds import Build, MixedHost, make, previous


@pytest.fixture(scope="session", params=previous())
def before(request: pytest.FixtureRequest) -> Build:
    """A build of before."""
    return make(request.param)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[MixedHost]:
    """Without a coordinator yet."""
    with own_host(monkeypatch, MixedHost) as made:
        yield made


@pytest.fixture
def start(host: MixedHost) -> Iterator[Callable[..., Notebook]]:
    """Start kernels; see `notebook.starter`."""
    with starter() as begin:
        yield begin
