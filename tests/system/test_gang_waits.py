"""Tests of the devices of a gang that waits, on a host with two simulated devices and the shipped defaults."""

from __future__ import annotations

import signal

from ..support.polling import wait_until
from .system_host import MIB, GpuProgram, SystemHost, last_end, stop_all


def test_the_other_device_of_a_gang_stays_in_use_during_an_overrun(dual_host: SystemHost) -> None:
    """The gang has a process on each device, and a process that is stopped in its turn has one of the devices.

    The memory of two clients does not fit, so that none of them are colocated.
    """

    def program(client: str, device: int) -> GpuProgram:
        program = dual_host.program(client, CUDA_VISIBLE_DEVICES=str(device))
        program.run(f"kept = cuda.alloc({150 * MIB})")
        return program

    stuck, there = program("stuck", 0), program("there", 1)
    gang = [program("gang", device) for device in range(2)]
    stuck.busy()
    stuck.send(signal.SIGSTOP)
    gang[0].start_busy()
    wait_until(lambda: dual_host.phase("gang") == "waiting")
    gang[1].start_busy()
    there.start_busy()
    wait_until(lambda: dual_host.phase("stuck") == "overrun")
    reported_at = last_end([*dual_host.launches(stuck), *dual_host.launches(there)])
    wait_until(lambda: dual_host.worked_since(reported_at, there))
    there.result()
    assert dual_host.phase("gang") == "waiting"
    stuck.send(signal.SIGCONT)
    for process in gang:
        process.result()
    stop_all(stuck, there, *gang)
