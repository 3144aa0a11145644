"""Tests of a turn that does not end, which other clients join, and of a slow eviction, which is no such turn."""

from __future__ import annotations

import pytest

from .system_host import MIB, WAIT, GpuProgram, SystemHost, wait_until
from .test_drain_of_dependent_work import with_flags

PATIENCE = 0.5  # seconds of an overrun until other clients join


def test_overrun_is_joined(host: SystemHost) -> None:
    """The stuck launch waits for a word that is not set. Clients join one at a time, except a too large client."""
    host.start_coordinator(
        "--time-quantum", "0.1", "--GpuShare.sharing=exclusive", "--GpuShare.overrun=join",
        f"--GpuShare.overrun_patience={PATIENCE}",
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
    other.result()
    assert third.result() is None
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
    waited = host.launches(other)[0].begin_ns - host.launches(stuck)[0].begin_ns
    assert waited / 1e9 > PATIENCE, "no client joins a turn before its overrun"
    assert [overlap(large, one) for one in (stuck, other, third)] == [0, 0, 0]
    assert overlap(other, third) == 0


@pytest.mark.nightly  # the eviction takes 12 s
@pytest.mark.parametrize("mode", ["unified", "swap"])
def test_a_slow_bulk_eviction_is_no_overrun(host: SystemHost, mode: str) -> None:
    """An eviction of 300 MiB lasts longer than the 10 s in which work must end, and moves parts."""
    host.config = host.folder / "slow.conf"
    bandwidths = "d2h_bandwidth = 25 MiB/s\npageable_d2h_bandwidth = 25 MiB/s\n"
    host.config.write_text(f"[device]\nname = slow link\nmemory = 512 MiB\n{bandwidths}")
    host.start_coordinator("--time-quantum", "0.2", "--sharing", "exclusive")
    one, other = (host.program(name, GPUSHARE_MEMORY_MODE=mode) for name in ("one", "other"))
    fill = f"array = cuda.alloc({400 * MIB})[1]; check(cuda.cuMemsetD8_v2(c_uint64(array), 7, c_size_t({400 * MIB})))"
    for program in (one, other):
        program.run(f"{fill}; check(cuda.cuCtxSynchronize())", 3 * WAIT)
    page = host.page(one)
    assert page["evicted_bytes"] >= 256 * MIB and page["evicted_ns"] > 10_000_000_000
    assert host.status()["coordinator"]["overruns"] == 0
    parts = [e.bytes for e in host.executions(one) if e.kind in ("prefetch to host", "device to host")]
    assert len(parts) > 1 and max(parts) <= 256 * MIB
