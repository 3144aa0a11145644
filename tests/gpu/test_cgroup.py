"""Test of the eviction of a program whose cgroup has little host memory, while a rival takes the other turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_gpushare.coordinator.host.host_memory import USABLE_FRACTION

from ..support.memory_cgroup import MakeCgroup
from ..support.polling import wait_until
from .card_host import IS_GPU, MODES, WAIT, WORKING_SET, CardHost

PIECES = 8
PIECE = WORKING_SET // PIECES
ROUNDS = 4


# The coordinator leaves more memory of a cgroup free than the working sets of the simulated device have.
@pytest.mark.skipif(not IS_GPU, reason="tests/system/test_memory_cgroup.py has the form for the simulated device")
@pytest.mark.parametrize("mode", MODES)
def test_eviction_within_a_small_cgroup(
    host: CardHost, make_cgroup: MakeCgroup, mode: str, record_property: Callable[[str, object], None]
) -> None:
    """The cgroup has host memory for a part of the working set. That part leaves, and Linux kills no process."""
    cgroup = make_cgroup(4 * WORKING_SET)
    host.begin(mode)
    program = host.card_program("one", mode)
    (cgroup.folder / "cgroup.procs").write_text(str(program.pid))
    rival = host.start_rival(mode, is_short=True)
    # The working sets have half of one more than the card has room for. So three quarters of one are enough. The limit
    # comes before the program's memory, because memory that has left keeps its part of the host.
    cgroup.set_limit(cgroup.used_bytes() + int(3 * WORKING_SET / 4 / USABLE_FRACTION))
    program.start(f"arrays = [hold({PIECE}, 7) for _ in range({PIECES})]")
    program.result(WAIT)
    wait_until(lambda: host.clients()["one"]["unbacked"], WAIT, what="a sample of the new limit")
    for _ in range(ROUNDS):
        host.wait_for_turn("rival")
        program.start(f"[words(array, {PIECE}) for array in arrays]")
        assert program.result(WAIT) == [[7]] * PIECES
    evicted = host.moved_bytes("one")
    record_property("evicted_bytes", evicted)
    record_property("cgroup_bytes", cgroup.used_bytes())
    assert evicted > 0
    assert cgroup.oom_kills() == 0
    host.stop_rival(rival)
    program.end()
