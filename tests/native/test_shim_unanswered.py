"""Coordinators that come and go between a hello and its answer: nobody may run where others don't see it."""

from __future__ import annotations

import fcntl
import os
import time

from jupyter_gpushare.wire.page import Page

from .conftest import Client, Machine
from .fake_coordinator import FakeCoordinator, Process, fake_coordinator, until
from .test_shim_alone import LOOP, lock_is_free


def client_of(machine: Machine, coordinator: FakeCoordinator, name: str = "x") -> tuple[Client, Process]:
    client = machine.client(GPUSHARE_CLIENT=name)
    client.start("cuda = Cuda()")
    process = coordinator.accept().welcome()
    client.result()
    return client, process


def test_an_opening_counts_only_with_the_answer_to_hello(machine: Machine) -> None:
    """It may say that another client page is ours, in which our record lock is to be seen."""
    with fake_coordinator(machine.socket) as coordinator:
        client, process = client_of(machine, coordinator)
        process.connection.close()
        process = coordinator.accept()
        client.run(LOOP)
        until(lambda: process.page.report.waiting)
        process.lock()
        process.open(5)
        time.sleep(0.1)  # nothing is to happen
        assert client.run("made") == 0
        assert process.page.gate_open
        process.welcome()
        until(lambda: client.run("made"), 1.0)
        client.run("stop = True; thread.join()")


def test_who_has_left_does_not_go_by_an_opening_that_comes_late(machine: Machine) -> None:
    with fake_coordinator(machine.socket) as coordinator:
        client, process = client_of(machine, coordinator)
        process.connection.close()
        process = coordinator.accept()  # and hangs before it reads
        page = Page(os.dup(process.page.descriptor))
    (path,) = machine.lock_folder.iterdir()
    with path.open() as another:
        fcntl.flock(another, fcntl.LOCK_EX)  # so that it has no turn by itself
        client.run(LOOP)
        page.open_gate(5)
        until(lambda: not page.gate_open and page.report.drained_epoch == 5)
        assert client.run("made") == 0
    until(lambda: client.run("made"))  # by the lock files
    client.run("stop = True; thread.join()")
    page.close()


def test_a_lock_stays_for_who_runs_by_it_and_has_joined_another_page(machine: Machine) -> None:
    """The client's other process, which still has the old lock and has drained, looks whether it is needed."""
    flag = machine.root / "flag"
    flag.write_bytes(bytes(4096))
    with fake_coordinator(machine.socket) as coordinator:
        a, first = client_of(machine, coordinator)
        b = machine.client(GPUSHARE_CLIENT="x")
        b.start("cuda = Cuda()")
        second = coordinator.accept().join(first, 1)
        b.result()
        first.lock()
        for process in (first, second):
            process.open(1)
        b.run(f"""
import mmap
file = open({str(flag)!r}, "r+b")
memory = mmap.mmap(file.fileno(), 4096)
word = c_uint32.from_buffer(memory)
address = ctypes.addressof(word)
assert cuda.cuMemHostRegister_v2(c_void_p(address), c_size_t(4096), 0) == 0
assert cuda.launch('wait_flag', address, 7) == 0
""")
        for process in (first, second):
            process.close_gate(1)
        first.expect("drained", epoch=1)
    with fake_coordinator(machine.socket) as coordinator:
        back = {process.hello["pid"]: process for process in (coordinator.accept(), coordinator.accept())}
        _, other = client_of(machine, coordinator, "another")
        assert back[b.pid].hello["running"]
        back[b.pid].join(other, 1)
        until(lambda: "in contact" in machine.log_text())
        for free in (False, True):
            back[a.pid].connection.close()
            back[a.pid] = coordinator.accept()
            assert lock_is_free(machine) is free
            if not free:
                b.run("word.value = 7")
                while back[b.pid].next()["type"] != "drained":
                    pass
