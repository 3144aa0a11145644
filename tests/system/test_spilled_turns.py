"""Tests of an offline program that runs beside an online one with a part of its memory off the device."""

from __future__ import annotations

import time
from typing import Any

import pytest

from .system_host import MIB, GpuProgram, SystemHost, wait_until

DEVICE_BYTES = 1024 * MIB
ARRAY, ARRAYS = 64 * MIB, 10  # of each program, together five eighths of the device
FILL = (
    f"arrays = [cuda.alloc({ARRAY})[1] for _ in range({ARRAYS})];"
    f"[check(cuda.cuMemsetD8_v2(c_uint64(a), i + 1, c_size_t({ARRAY}))) for i, a in enumerate(arrays)];"
    "check(cuda.cuCtxSynchronize())"
)
READ = f"""
def first_and_last(address):
    found = []
    for at in (address, address + {ARRAY} - 1):
        value = (c_char * 1)()
        check(cuda.cuMemcpyDtoH_v2(value, c_uint64(at), c_size_t(1)))
        found.append(value[0][0])
    return found
"""
LAUNCH, PERIOD = 0.006, 0.01  # seconds of an online launch, and from one launch to the next
ALONE_SECONDS, BESIDE_SECONDS = 10.0, 40.0
MAX_LOSS = 0.05


def start_online(host: SystemHost) -> GpuProgram:
    online = host.program("online", "service=online")
    online.run(FILL)
    online.busy(launch=LAUNCH, period=PERIOD, sync_every=1)
    return online


def start_offline(host: SystemHost) -> GpuProgram:
    """Start the offline program, and return when it runs spilled."""
    offline = host.program("offline", "service=offline")
    offline.run(READ)
    offline.start(FILL)
    offline.result(60.0)
    offline.start_busy()
    offline.result(60.0)
    wait_until(lambda: is_spilled(host, offline), 60.0)
    return offline


def is_spilled(host: SystemHost, offline: GpuProgram) -> bool:
    page = host.page(offline)
    runs = all(host.phase(client) == "running" for client in ("online", "offline"))
    return runs and 0 < page["resident"] <= page["turn_limit"] < page["allocated"]


def limit_of(host: SystemHost, client: str, reason: str) -> dict[str, Any] | None:
    """Return the client's present limit with this reason."""
    return next((limit for limit in host.clients()[client]["limits"] if limit["reason"] == reason), None)


@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_an_offline_program_gives_way_with_its_own_memory(default_settings_host: SystemHost) -> None:
    host, start_time = default_settings_host, time.time()
    online, offline = start_online(host), start_offline(host)

    def gives_way() -> bool:
        """Return whether the online program keeps its memory until both have worked again.

        On a busy machine, the online program may pause for so long that its turn ends.
        """
        evicted, began = host.page(online)["evicted_bytes"], time.monotonic_ns()
        wait_until(lambda: is_spilled(host, offline) and host.worked_since(began, online, offline), 60.0)
        return host.page(online)["evicted_bytes"] == evicted

    wait_until(gives_way, 60.0)
    # The coordinator changes the limit now and then.
    limit = wait_until(
        lambda: (
            (found := limit_of(host, "offline", "spilled"))
            and found["rate"] == host.page(offline)["turn_limit"]
            and found
        )
    )
    assert limit["unit"] == "turn_bytes"
    assert start_time - 1 <= limit["since"] <= time.time() + 1
    assert host.page(online)["turn_limit"] == 0
    online.stop()
    online.signal_end()
    wait_until(lambda: host.page(offline)["resident"] == host.page(offline)["allocated"], 60.0)
    assert host.page(offline)["turn_limit"] == 0
    offline.stop()
    assert offline.run("[first_and_last(array) for array in arrays]") == [[i + 1] * 2 for i in range(ARRAYS)]


@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_an_online_program_keeps_its_throughput_beside_a_spilled_one(default_settings_host: SystemHost) -> None:
    """The limit of the offline program's launches has the loss that was measured."""
    host = default_settings_host
    online = start_online(host)

    def rate(seconds: float) -> float:
        """Return the online program's launches per second in the next seconds."""
        before, start_time = len(host.launches(online)), time.monotonic()
        time.sleep(seconds)
        return (len(host.launches(online)) - before) / (time.monotonic() - start_time)

    alone = rate(ALONE_SECONDS)
    offline = start_offline(host)
    before = len(host.launches(offline))
    assert rate(BESIDE_SECONDS) >= (1 - MAX_LOSS) * alone
    assert len(host.launches(offline)) > before
    limit = wait_until(lambda: limit_of(host, "offline", "adaptive"), 60.0)
    assert (limit["unit"], limit["colocated_with"]) == ("blocks", ["online"])
    assert limit["loss"] is not None and limit["since"] <= time.time() + 1
    online.stop()
    offline.stop()
