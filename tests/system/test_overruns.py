"""Test of a turn that does not end, which other clients join."""

from __future__ import annotations

from .system_host import GpuProgram, SystemHost, wait_until
from .test_drain_of_dependent_work import with_flags


def test_overrun_is_joined(host: SystemHost) -> None:
    """The stuck launch waits for a word that is not set. Clients join one at a time, except a too large client."""
    host.start_coordinator(
        "--time-quantum", "0.1", "--GpuShare.sharing=exclusive", "--GpuShare.overrun=join",
        "--GpuShare.overrun_patience=0.5",
    )  # fmt: skip
    stuck, other, third = host.program("stuck"), host.program("other"), host.program("third")
    large = host.program("large")
    with_flags(host, stuck, third)
    stuck.run("data = cuda.alloc(64 << 20)")
    large.run("data = cuda.alloc(224 << 20)")
    stuck.start("cuda.launch('wait_flag', flags[0], 1) or cuda.cuCtxSynchronize()")
    wait_until(lambda: host.phase("stuck") == "running")
    other.start_busy()
    third.start("check(cuda.spin(1)) or check(cuda.cuCtxSynchronize())")
    assert host.phase("other") != "running"
    other.result(30)
    assert third.result(30) is None
    assert host.phase("stuck") == "overrun"
    large.start("check(cuda.spin(1)) or check(cuda.cuCtxSynchronize())")
    wait_until(lambda: host.phase("large") == "waiting")
    third.run("cuda.launch('set_flag', flags[0], 1) or cuda.cuCtxSynchronize()")
    assert stuck.result() == 0
    assert large.result() is None, "the device has room for it now"
    other.stop()

    def overlap(one: GpuProgram, another: GpuProgram) -> float:
        return host.overlap([one], [another])

    assert overlap(stuck, other) > 0
    assert [overlap(large, one) for one in (stuck, other, third)] == [0, 0, 0]
    assert overlap(other, third) == 0
