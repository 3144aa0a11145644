"""Test of the release of frameworks' caches with the shipped defaults, with a stand-in for PyTorch's cache."""

from __future__ import annotations

from collections.abc import Callable

from .notebook_client import Notebook
from .system_host import MIB, SystemHost, wait_until

# The cache keeps 64 MiB of freed memory.
CACHE = f"""
import types
status, cached = cuda.alloc({64 * MIB})
check(status)

class Cache:
    def is_initialized(self):
        return True
    def empty_cache(self):
        global cached
        if cached:
            check(cuda.free(cached))
            cached = None

sys.modules["torch"] = types.SimpleNamespace(cuda=Cache())
"""


def allocated(host: SystemHost, client: str) -> int:
    return int(host.clients()[client]["allocated"])


def test_notebook_releases_its_cache_while_memory_is_short(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    host = default_settings_host
    notebook = start()
    notebook.run(CACHE)
    notebook.run("pass")
    assert allocated(host, notebook.client_id) >= 64 * MIB, "all memory fits"

    assert host.command("config", "release_caches", "false").returncode == 0
    other = host.program("other")
    other.run(f"status, array = cuda.alloc({224 * MIB}); check(status)")
    wait_until(lambda: sum(client["allocated"] for client in host.clients().values()) > host.memory)
    notebook.run("pass")
    assert allocated(host, notebook.client_id) >= 64 * MIB, "the setting is off"

    assert host.command("config", "release_caches", "true").returncode == 0

    def is_released() -> bool:
        notebook.run("pass")
        return allocated(host, notebook.client_id) < 64 * MIB

    wait_until(is_released)
