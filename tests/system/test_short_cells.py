"""Short cells beside long work, and offline programs beside online ones, with the settings as shipped."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from .host import Host, Program, eventually
from .notebook import Notebook

MIB = 1 << 20
LINK = 6 * 1024 * MIB  # bytes a second each way, of the simulated device's link
SIZE = 640 * MIB  # of 1 GiB
FILL = (
    f"error, array = cuda.alloc({SIZE}); check(error); check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({SIZE})))"
)
LAUNCH = 0.002  # seconds
LOAD = 0.4  # of the device, by the online program
WAIT_FOR_A_TURN = 1.0  # seconds


@pytest.mark.parametrize("host", [1024 * MIB], indirect=True)
def test_a_short_cell_does_not_wait_for_a_newcomer(shipped: Host, start: Callable[..., Notebook]) -> None:
    """A notebook worked for 20 s on an idle device before another one begins an endless loop."""
    notebook, newcomer = start(), start()
    notebook.run(FILL)
    notebook.run("work(20)", 40)
    newcomer.run(FILL)
    loop = newcomer.start("while True: work(0.05)")
    eventually(lambda: shipped.clients()[newcomer.client]["phase"] == "running")
    waits = []
    for _ in range(8):
        began = time.monotonic()
        notebook.run("work(0.02)")
        waits.append(time.monotonic() - began)
        time.sleep(2.0)  # the person thinks
    newcomer.interrupt()
    assert newcomer.finish(loop)["ename"] == "KeyboardInterrupt"
    assert max(waits) <= WAIT_FOR_A_TURN + 2 * SIZE / LINK, waits


def part_of_device(host: Host, program: Program, seconds: float) -> float:
    """Return the part of the device's time that the program's launches of 2 ms had in the last `seconds`."""
    since = time.monotonic_ns() - int(seconds * 1e9)
    return sum(execution.end_ns >= since for execution in host.executions(program)) * LAUNCH / seconds


@pytest.mark.alone
@pytest.mark.parametrize("order", [("online", "offline"), ("offline", "online")], ids="-then-".join)
def test_an_offline_program_has_what_an_online_one_leaves(shipped: Host, order: tuple[str, str]) -> None:
    programs = {name: shipped.program(name, f"service={name}") for name in order}
    online, offline = programs["online"], programs["offline"]
    requests = {"look": 8, "period": LAUNCH / LOAD}
    for name in order:
        programs[name].busy(launch=LAUNCH, **(requests if name == "online" else {}))
        eventually(lambda name=name: part_of_device(shipped, programs[name], 2.0) >= 0.9 * LOAD)  # type: ignore[misc]
    began = time.monotonic()
    eventually(lambda: part_of_device(shipped, offline, 5.0) >= 0.8 * (1 - LOAD), 60.0)
    time.sleep(10.0)
    assert part_of_device(shipped, offline, 10.0) >= 0.8 * (1 - LOAD)
    assert part_of_device(shipped, online, time.monotonic() - began) >= 0.95 * LOAD
    online.end()
    time.sleep(2.0)
    assert part_of_device(shipped, offline, 1.0) >= 0.9, "it has the device a second later"
    offline.stop()
