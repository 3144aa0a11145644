"""Tests of the release of frameworks' caches at ends of cells, by real kernels with stand-ins for the frameworks."""

from __future__ import annotations

from typing import Any

import pytest

FRAMEWORKS = """
import sys, types

class Cuda:
    used = True
    released = 0
    def is_initialized(self):
        return self.used
    def empty_cache(self):
        self.released += 1

class Pool:
    blocks = 3
    def n_free_blocks(self):
        return self.blocks
    def free_all_blocks(self):
        self.blocks = 0

cuda, pool = Cuda(), Pool()
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
sys.modules["cupy"] = types.SimpleNamespace(get_default_memory_pool=lambda: pool)
"""
# The kernel's connection with the coordinator, as an expression in a cell.
CONNECTION = "__import__('sys').modules['_gpushare_kernel.session'].active_session.connection"


@pytest.fixture
def notebook(recorder: Any, start: Any, wait_until: Any) -> Any:
    notebook = start()
    wait_until(lambda: recorder.attached)
    notebook.run(FRAMEWORKS)
    return notebook


def report(recorder: Any, notebook: Any, is_short: bool, wait_until: Any) -> None:
    recorder.report_memory_shortage(is_short)
    wait_until(lambda: notebook.value(f"{CONNECTION}._memory_is_short") == is_short)


def test_caches_stay_while_memory_suffices(notebook: Any) -> None:
    notebook.run("pass")
    assert notebook.value("[cuda.released, pool.blocks]") == [0, 3]


def test_caches_are_released_at_each_end_of_a_cell_while_memory_is_short(
    recorder: Any, notebook: Any, wait_until: Any
) -> None:
    report(recorder, notebook, True, wait_until)
    before = notebook.value("cuda.released")
    assert notebook.value("[cuda.released, pool.blocks]") == [before + 1, 0]
    report(recorder, notebook, False, wait_until)
    before = notebook.value("cuda.released")
    assert notebook.value("cuda.released") == before


def test_the_release_comes_before_the_end_of_the_cell(recorder: Any, notebook: Any, wait_until: Any) -> None:
    """The coordinator evicts memory after the end of a cell, so the caches must be empty by then."""
    report(recorder, notebook, True, wait_until)
    notebook.run(f"cuda.empty_cache = lambda: running.append(dict({CONNECTION}._running)); running = []")
    notebook.run("pass")
    assert notebook.value("all(len(one) == 1 for one in running) and len(running)") == 2


def test_an_unused_framework_is_not_called(recorder: Any, notebook: Any, wait_until: Any) -> None:
    notebook.run("cuda.used = False")
    report(recorder, notebook, True, wait_until)
    notebook.run("pass")
    assert notebook.value("cuda.released") == 0


def test_faults_of_a_framework_have_no_effect(recorder: Any, notebook: Any, wait_until: Any) -> None:
    notebook.run("cuda.empty_cache = pool.free_all_blocks = lambda: 1 / 0")
    report(recorder, notebook, True, wait_until)
    assert notebook.run("print('fine')").stdout == "fine\n"
    wait_until(lambda: not recorder.open)


def test_nothing_is_released_while_another_request_runs(recorder: Any, notebook: Any, wait_until: Any) -> None:
    report(recorder, notebook, True, wait_until)
    notebook.run(f"{CONNECTION}.begin('other')")
    before = notebook.value("cuda.released")
    assert notebook.value("cuda.released") == before
    notebook.run(f"{CONNECTION}.end('other')")
    assert notebook.value("cuda.released") == before + 1


def test_a_new_connection_begins_without_a_shortage(recorder: Any, notebook: Any, wait_until: Any) -> None:
    report(recorder, notebook, True, wait_until)
    recorder.disconnect()
    wait_until(lambda: len(recorder.attached) == 2)
    wait_until(lambda: not notebook.value(f"{CONNECTION}._memory_is_short"))
