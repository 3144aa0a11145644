"""Test of random sequences of allocations, frees, writes, evictions and restores.

Contents stay the same to the bit. The test's records, the figures of the page and those of the driver agree.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ..support import tier
from .conftest import NativeHost
from .fake_coordinator import scripted_coordinator, wait_until
from .test_shim_swap import EVERYTHING, TOOLS

KIB = 1 << 10
GRAIN = 2 << 20
SIZES = [1, 512, 700, 4 * KIB, 100 * KIB, 1 << 20, (1 << 20) + 1, GRAIN, 20 << 20, 70 << 20]
PATTERN = """
def pattern(seed, size):
    return (bytes([seed % 251, (seed * 7) % 253, seed * 31 % 255]) * (size // 3 + 1))[:size]
"""


class Transfers(RuleBasedStateMachine):
    mode = "swap"
    pinned = "0"

    @initialize()
    def begin(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="gpushare-t-")
        root = Path(self._folder.name)
        self.machine = NativeHost(root, root)
        self._coordinator = scripted_coordinator(self.machine.socket)
        coordinator = self._coordinator.__enter__()
        modes = {"GPUSHARE_MEMORY_MODE": self.mode, "GPUSHARE_PINNED": self.pinned}
        self.client, self.process = self.machine.new_client(coordinator, **modes)
        self.client.run(TOOLS + PATTERN)
        self.bare = self.machine.client(GPUSHARE_DISABLE="1")
        self.bare.run("cuda = Cuda()")
        self.base_bytes = self.used()
        self.epoch = 0
        self.open = False
        self.seeds = 0
        self.arrays: dict[int, tuple[int, int]] = {}  # address: size, seed of its contents or 0
        self.mapped: dict[int, tuple[int, int, int]] = {}  # address: size, handle, seed

    def used(self) -> int:
        free, total = self.bare.run("cuda.info()")
        return int(total - free)

    def teardown(self) -> None:
        if hasattr(self, "machine"):
            self.machine.end()
            self._coordinator.__exit__(None, None, None)
            self._folder.cleanup()

    @rule(size=st.sampled_from(SIZES))
    @precondition(lambda self: len(self.arrays) < 8)
    def allocate(self, size: int) -> None:
        code, address = self.client.run(f"cuda.alloc({size})")
        assert code == 0
        assert all(address + size <= other or other + self.arrays[other][0] <= address for other in self.arrays)
        self.arrays[address] = (size, 0)
        if self.open:
            self.fill(address)

    @rule(data=st.data())
    @precondition(lambda self: self.arrays)
    def free(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.arrays)))
        assert self.client.run(f"cuda.free({address})") == 0
        del self.arrays[address]

    @rule(data=st.data())
    @precondition(lambda self: self.arrays and self.open)
    def write(self, data: st.DataObject) -> None:
        self.fill(data.draw(st.sampled_from(sorted(self.arrays))))

    def fill(self, address: int) -> None:
        size = self.arrays[address][0]
        self.seeds += 1
        assert self.client.run(f"write({address}, pattern({self.seeds}, {size}))") == 0
        self.arrays[address] = (size, self.seeds)

    @rule(size=st.sampled_from([GRAIN, 3 * GRAIN]))
    @precondition(lambda self: self.mode == "swap" and len(self.mapped) < 4)
    def create_and_map(self, size: int) -> None:
        code, handle = self.client.run(f"create({size})")
        assert code == 0
        address = self.client.run(f"reserve({size})")
        assert self.client.run(f"map_at({address}, {size}, {handle})") == 0
        self.mapped[address] = (size, handle, 0)

    @rule(data=st.data())
    @precondition(lambda self: self.mapped and self.open)
    def write_mapped(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.mapped)))
        size, handle, _ = self.mapped[address]
        self.seeds += 1
        assert self.client.run(f"write({address}, pattern({self.seeds}, {size}))") == 0
        self.mapped[address] = (size, handle, self.seeds)

    @rule(data=st.data())
    @precondition(lambda self: self.mapped)
    def map_elsewhere(self, data: st.DataObject) -> None:
        address = data.draw(st.sampled_from(sorted(self.mapped)))
        size, handle, seed = self.mapped.pop(address)
        assert self.client.run(f"unmap({address}, {size})") == 0
        new_address = self.client.run(f"reserve({size})")
        assert self.client.run(f"map_at({new_address}, {size}, {handle})") == 0
        self.mapped[new_address] = (size, handle, seed)

    @rule(data=st.data(), handle_first=st.booleans())
    @precondition(lambda self: self.mapped)
    def unmap_and_release(self, data: st.DataObject, handle_first: bool) -> None:
        address = data.draw(st.sampled_from(sorted(self.mapped)))
        size, handle, _ = self.mapped.pop(address)
        calls = [f"release({handle})", f"unmap({address}, {size})"]
        assert self.client.run(f"[{', '.join(calls if handle_first else reversed(calls))}]") == [0, 0]

    @rule()
    @precondition(lambda self: not self.open)
    def turn_begins(self) -> None:
        self.epoch += 1
        self.process.page.control.resident_target[0] = EVERYTHING
        self.process.open(self.epoch)
        self.open = True
        assert self.client.run("cuda.spin(0.01) or cuda.cuCtxSynchronize()") == 0
        self.check_contents()

    @rule(fraction=st.sampled_from([0.0, 0.0, 0.3, 0.7, 1.0]))
    @precondition(lambda self: self.open)
    def turn_ends(self, fraction: float) -> None:
        self.check_contents()
        target = int(fraction * self.process.page.report.allocated)
        self.process.page.control.resident_target[0] = target if fraction < 1 else EVERYTHING
        self.process.drain(self.epoch)
        self.open = False
        if self.mode == "swap":
            wait_until(lambda: self.process.page.report.resident <= target or fraction == 1)

    @rule()
    @precondition(lambda self: not self.open and self.epoch)
    def evict_while_idle(self) -> None:
        self.process.page.control.resident_target[0] = 0
        self.process.doorbell()
        wait_until(lambda: self.process.page.report.resident == 0)

    @rule(fraction=st.sampled_from([0.0, 0.3, 1.0]), wait=st.booleans())
    @precondition(lambda self: not self.open and self.epoch)
    def prefetch(self, fraction: float, wait: bool) -> None:
        limit = EVERYTHING if fraction == 1 else int(fraction * self.process.page.report.allocated)
        self.process.page.control.resident_target[0] = EVERYTHING
        self.process.page.control.prefetch_limit[0] = limit
        self.process.doorbell()
        report = self.process.page.report
        if wait and fraction == 1:  # unmade memory waits for the turn
            wait_until(lambda: report.resident + report.unmade == report.allocated)

    def check_contents(self) -> None:
        for address, (size, seed) in self.arrays.items():
            assert not seed or self.client.run(f"has_data({address}, pattern({seed}, {size}))")
        for address, (size, _, seed) in self.mapped.items():
            assert not seed or self.client.run(f"has_data({address}, pattern({seed}, {size}))")

    @invariant()
    def figures_agree(self) -> None:
        if not hasattr(self, "process"):
            return
        report = self.process.page.report
        allocated = sum(size for size, _ in self.arrays.values()) + sum(size for size, _, _ in self.mapped.values())
        assert report.allocated == allocated
        assert report.resident <= allocated
        if self.mode != "swap":
            return
        large = sum(-(-size // GRAIN) * GRAIN for size, _ in self.arrays.values() if size > GRAIN // 2)
        whole = large + sum(size for size, _, _ in self.mapped.values())
        small = sum(size for size, _ in self.arrays.values() if size <= GRAIN // 2)
        max_bytes = whole + 8 * GRAIN * (small > 0) + GRAIN
        # Memory that is moving counts both as used on the device and as missing.
        on_device = (
            wait_until(
                lambda: (
                    whole <= (used := self.used() - self.base_bytes) + report.missing_bytes <= max_bytes and used + 1
                )
            )
            - 1
        )
        if report.resident == 0 and not self.open and not self.process.page.control.prefetch_limit[0]:
            assert on_device <= 8 * GRAIN
        if self.open:
            assert report.missing_bytes <= sum(size for size, _ in self.arrays.values()) + 8 * GRAIN


@pytest.mark.parametrize(("mode", "pinned"), [("swap", "0"), ("swap", str(40 << 20)), ("unified", "0")])
def test_contents_and_figures(mode: str, pinned: str) -> None:
    kind = type("Transfers", (Transfers,), {"mode": mode, "pinned": pinned})
    run_state_machine_as_test(
        kind,
        settings=settings(
            max_examples=tier.strength(6, 200),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
