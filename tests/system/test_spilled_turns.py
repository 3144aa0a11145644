"""Test of an offline program that runs beside an online one with a part of its memory off the device."""

from __future__ import annotations

import time

import pytest

from .system_host import MIB, SystemHost, wait_until

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


@pytest.mark.parametrize("host", [DEVICE_BYTES], indirect=True)
def test_an_offline_program_gives_way_with_its_own_memory(default_settings_host: SystemHost) -> None:
    host = default_settings_host
    online, offline = host.program("online", "service=online"), host.program("offline", "service=offline")
    online.run(FILL)
    online.busy(launch=0.006, period=0.01, sync_every=1)
    offline.run(READ)
    offline.start(FILL)
    offline.result(60.0)
    offline.start_busy()
    offline.result(60.0)

    def is_spilled() -> bool:
        page = host.page(offline)
        runs = all(host.phase(client) == "running" for client in ("online", "offline"))
        return runs and 0 < page["resident"] <= page["turn_limit"] < page["allocated"]

    wait_until(is_spilled, 60.0)
    began = time.monotonic_ns()
    wait_until(lambda: is_spilled() and host.worked_since(began, online, offline), 60.0)
    page = host.page(online)
    assert (page["evicted_bytes"], page["turn_limit"]) == (0, 0)
    online.stop()
    online.signal_end()
    wait_until(lambda: host.page(offline)["resident"] == host.page(offline)["allocated"], 60.0)
    assert host.page(offline)["turn_limit"] == 0
    offline.stop()
    assert offline.run("[first_and_last(array) for array in arrays]") == [[i + 1] * 2 for i in range(ARRAYS)]
