"""Processes that are killed at any moment: the next one runs, and nothing of them stays behind."""

from __future__ import annotations

import signal
import time

from .held import descriptors, mappings
from .host import Host, Program, all_busy, eventually, stop_all


def first_after(host: Host, program: Program, moment: int) -> float:
    """Seconds from `moment` to the first work of the program."""
    eventually(lambda: any(e.begin_ns > moment for e in host.executions(program)))
    return (next(e.begin_ns for e in host.executions(program) if e.begin_ns > moment) - moment) / 1e9


ROUNDS = """
for number in range({rounds}):
    child = os.fork()
    if child == 0:
        cuda = Cuda()
        check(cuda.spin(0.1))
        check(cuda.alloc(1 << 20)[0])
        os.kill(os.getpid(), signal.SIGKILL) if number % 2 else os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_hundred_starts_leave_nothing_behind(patient: Host) -> None:
    """A hundred processes of one client, one after the other, half of them killed as they run.

    They are forked before CUDA is initialised, which is what makes a hundred affordable: to the coordinator each is
    what a restarted kernel is, a new process of a known client. Restarts of real kernels: `test_notebooks.py`.
    """
    keeper = patient.program("kernel")
    starter = patient.program("kernel", cuda=False)
    starter.run(ROUNDS.format(rounds=1))
    eventually(lambda: len(patient.clients()["kernel"]["processes"]) == 1)
    before, pages = descriptors(patient), mappings(patient)
    starter.run(ROUNDS.format(rounds=100), seconds=60)
    eventually(lambda: len(patient.clients()["kernel"]["processes"]) == 1)
    clients = patient.clients()
    assert list(clients) == ["kernel"]
    assert clients["kernel"]["allocated"] == 0
    eventually(lambda: descriptors(patient) <= before)
    assert mappings(patient) == pages
    assert keeper.run("cuda.spin(1) or cuda.cuCtxSynchronize()") == 0


def test_a_client_that_ends_is_forgotten_with_all_it_had(quick: Host) -> None:
    before = descriptors(quick)
    programs = [quick.program(name) for name in ("one", "other")]
    for program in programs:
        program.busy()
    assert mappings(quick) > 0
    for program in programs:
        program.end(signal.SIGKILL)
    eventually(lambda: descriptors(quick) <= before)
    assert mappings(quick) == 0
    assert quick.status()["devices"][0]["grants"] == []


def test_a_program_that_is_stopped_while_it_is_next_is_passed_over(quick: Host) -> None:
    """Stopped by Ctrl-Z or a debugger. Its permit is withdrawn, so the program begins no turn when it goes on."""
    programs = [quick.program(name) for name in ("one", "two", "three")]
    one, two, three = programs
    all_busy(*programs)
    for _ in range(5):
        stop_while_next(quick, two, "two")
        stopped = time.monotonic_ns()
        for program in (three, one, three, one):
            first_after(quick, program, time.monotonic_ns())
        assert not any(execution.begin_ns > stopped for execution in quick.executions(two))
        two.send(signal.SIGCONT)
        for program in (two, three, one):
            first_after(quick, program, time.monotonic_ns())
    stop_all(*programs)
    assert quick.overlap(*([program] for program in programs)) == 0


def test_who_is_turned_away_waits_for_one_turn_only(host: Host) -> None:
    """It has turns by the device's lock alone, and the coordinator leaves the device to it."""
    host.start_coordinator("--time-quantum", "0.2", "--GpuShare.max_clients=1")
    one, other = host.program("one"), host.program("other", cuda=False)
    one.busy()
    other.start("cuda = Cuda()")
    other.start_busy()
    first_after(host, other, time.monotonic_ns())
    assert list(host.clients()) == ["one"]
    assert (other.result(), other.result()) == (None, None)
    other.stop()
    other.end()
    first_after(host, one, time.monotonic_ns())
    one.stop()
    assert host.overlap([one], [other]) == 0


def stop_while_next(host: Host, program: Program, client: str) -> None:
    """Stop the program while its client is first in line and another client runs."""
    while True:
        eventually(lambda: host.status()["devices"][0]["queue"][:1] == [client])
        program.send(signal.SIGSTOP)
        if host.phase(client) == "waiting":
            return
        program.send(signal.SIGCONT)  # it was faster: its turn has begun
