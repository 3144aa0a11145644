"""Tests of kernels on a node whose agents and keepers are killed again and again; nothing of a kernel is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

from jupyter_gpushare.cluster.node import kernel_folder
from jupyter_gpushare.cluster.node_connection import CONNECTIONS

from ..support.polling import wait_until
from ..support.tier import strength
from .conftest import RemoteNotebook

KILLS = strength(5, 50)
INTERRUPT_SECONDS = strength(60.0, 5.0)  # in the short tier the machine may be busy


def test_no_variable_is_lost_when_agents_are_killed(start_notebook: Callable[..., RemoteNotebook]) -> None:
    """Agents die at random times, also while they answer; soon the kernel can be interrupted again."""
    notebook = start_notebook()
    chance = random.Random(1)
    for number in range(KILLS):
        notebook.run(f"x_{number} = {number}")
        for connection in CONNECTIONS.present():
            connection.process.kill()
        time.sleep(chance.random() * 0.2)  # a new agent may be in any part of its start at the next kill
        for connection in CONNECTIONS.present():
            connection.process.kill()
        began = time.monotonic()
        notebook.interrupt_an_endless_cell()
        assert time.monotonic() < began + INTERRUPT_SECONDS
    assert notebook.value(f"[x_{KILLS - 1}, sum(v for n, v in list(globals().items()) if n[:2] == 'x_')]") == [
        KILLS - 1,
        sum(range(KILLS)),
    ]
    assert notebook.manager.is_alive()


def test_a_killed_keeper_takes_nothing_with_it(start_notebook: Callable[..., RemoteNotebook]) -> None:
    notebook = start_notebook()
    notebook.run("x = 41")
    (folder,) = kernel_folder.all_kernels()
    os.kill(folder.state()["keeper"], signal.SIGKILL)
    assert notebook.value("x + 1") == 42
    notebook.interrupt_an_endless_cell()
    notebook.manager.shutdown_kernel()
    wait_until(lambda: kernel_folder.all_kernels() == [])
