"""Short cells beside long work, and offline programs beside online ones, with the settings as shipped."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ..support import tier
from .notebook_client import Notebook
from .system_host import MIB, GpuProgram, SystemHost, wait_until

LINK = 6 * 1024 * MIB  # bytes a second each way, of the simulated device's link
SIZE = 640 * MIB  # of 1 GiB
FILL = (
    f"error, array = cuda.alloc({SIZE}); check(error); check(cuda.cuMemsetD8_v2(c_uint64(array), 1, c_size_t({SIZE})));"
    "check(cuda.cuCtxSynchronize())"  # one long launch: nothing takes the device from it
)
LAUNCH = 0.002  # seconds
CELLS = tier.strength(4, 8)
WORK_SECONDS = tier.strength(10, 20)  # of the notebook alone
MEASURED_SECONDS = tier.strength(10.0, 20.0)  # the rate is found in windows of 5 s
WAIT_FOR_A_TURN = 1.0  # seconds


@pytest.mark.parametrize("host", [1024 * MIB], indirect=True)
def test_a_short_cell_does_not_wait_for_a_newcomer(
    default_settings_host: SystemHost, start: Callable[..., Notebook]
) -> None:
    """A notebook worked long on an idle device before another one begins an endless loop."""
    notebook, newcomer = start(), start()
    notebook.run(FILL)
    notebook.run(f"work({WORK_SECONDS})", 2 * WORK_SECONDS + 20)
    newcomer.run(FILL)
    loop = newcomer.start("while True: work(0.05)")
    wait_until(lambda: default_settings_host.clients()[newcomer.client]["phase"] == "running")
    waits = []
    for _ in range(CELLS):
        began = time.monotonic()
        notebook.run("work(0.02)")
        waits.append(time.monotonic() - began)
        time.sleep(2.0)  # the person thinks
    newcomer.interrupt()
    assert newcomer.finish(loop)["ename"] == "KeyboardInterrupt"
    assert max(waits) <= WAIT_FOR_A_TURN + 2 * SIZE / LINK, waits


def part_of_device(host: SystemHost, program: GpuProgram, seconds: float) -> float:
    """Return the part of the device's time that the program's launches of 2 ms had in the last `seconds`."""
    since = time.monotonic_ns() - int(seconds * 1e9)
    return sum(execution.end_ns >= since for execution in host.executions(program)) * LAUNCH / seconds


@pytest.mark.exclusive
@pytest.mark.parametrize(
    ("first", "load", "blocks"), [("offline", 0.6, 1), *tier.nightly([("online", 0.3, 4096), ("online", 0.9, 1)])]
)
def test_an_offline_program_has_what_an_online_one_leaves(
    default_settings_host: SystemHost, first: str, load: float, blocks: int
) -> None:
    """`load`: the part of the device that the online program uses. `blocks`: of each launch of 2 ms.

    The rate that the offline program has is found, and then tries more than there is every few windows of 5 s.
    """
    online, offline = (default_settings_host.program(name, f"service={name}") for name in ("online", "offline"))
    started = {
        "online": lambda: online.busy(launch=LAUNCH, blocks=blocks, look=8, period=LAUNCH / load),
        "offline": lambda: offline.busy(launch=LAUNCH, blocks=blocks),
    }
    started.pop(first)()
    wait_until(
        lambda: part_of_device(default_settings_host, online if first == "online" else offline, 2.0) >= 0.9 * load
    )
    for start in started.values():
        start()
    began = time.monotonic()
    time.sleep(MEASURED_SECONDS)  # so that only what both do counts
    wait_until(lambda: part_of_device(default_settings_host, offline, MEASURED_SECONDS) >= 0.8 * (1 - load), 40.0)
    assert part_of_device(default_settings_host, online, time.monotonic() - began) >= 0.95 * load
    online.end()
    time.sleep(2.0)
    assert part_of_device(default_settings_host, offline, 1.0) >= 0.9, "it has the device a second later"
    offline.stop()
