"""Tests of NVML inside the client: memory of the client's device is as in cuMemGetInfo, and other calls pass."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator

MIB = 1 << 20
REAL = [0, 900, 300, 600]  # result; total, free and used bytes

FAKE = """
#include <stdlib.h>
#include <string.h>
typedef unsigned long long u64;
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned room) {
    strncpy(uuid, device ? getenv("FAKE_UUID") : "GPU-another", room);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, u64 *memory) {
    if (!memory)
        return 2;
    memory[0] = 900, memory[1] = 300, memory[2] = 600;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(void *device, u64 *memory) {
    memory[1] = 900, memory[2] = 50, memory[3] = 300, memory[4] = 550;
    return 0;
}
"""

LINKED = """
#include <stdio.h>
int cuInit(unsigned), nvmlDeviceGetMemoryInfo(void *, unsigned long long *);
int main(void) {
    unsigned long long before[3] = {0}, after[3] = {0};
    nvmlDeviceGetMemoryInfo("device", before);
    cuInit(0);
    nvmlDeviceGetMemoryInfo("device", after);
    printf("[%llu, %llu]\\n", before[0], after[0]);
}
"""

QUERY = """
nvml = ctypes.CDLL("libnvidia-ml.so.1")
def query(device=1):
    memory = (c_uint64 * 3)()
    return [nvml.nvmlDeviceGetMemoryInfo(c_void_p(device), memory), *memory]
def query_v2(device=1):
    memory = (c_uint64 * 5)(0x2000028)
    return [nvml.nvmlDeviceGetMemoryInfo_v2(c_void_p(device), memory), *memory]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "nvml"
    path.mkdir()
    (path / "fake.c").write_text(FAKE)
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(path / "libnvidia-ml.so.1")]
    subprocess.run([*command, str(path / "fake.c")], check=True)
    return path


def start(machine: NativeHost, folder: Path, **more: str) -> CudaClient:
    path = f"{machine.environment()['LD_LIBRARY_PATH']}:{folder}"
    return machine.client(LD_LIBRARY_PATH=path, FAKE_UUID="GPU-none", **more)


@pytest.fixture
def started(
    machine: NativeHost, coordinator: ScriptedCoordinator, folder: Path
) -> tuple[CudaClient, ProcessConnection]:
    client = start(machine, folder)
    client.run(QUERY)
    assert client.run("query()") == REAL, "before cuInit, the shim passes the driver's answer"
    process = client.join(coordinator)
    client.run(f"os.environ['FAKE_UUID'] = {process.hello['devices'][0]['uuid']!r}")
    return client, process


def test_nvml_agrees_with_the_driver(started: tuple[CudaClient, ProcessConnection]) -> None:
    client, process = started
    for limit, size in ((0, 0), (100 * MIB, 0), (100 * MIB, 30 * MIB)):
        process.page.control.memory_limit = limit
        if size:
            assert client.run(f"cuda.alloc({size})[0]") == 0
        free, total = client.run("cuda.info()")
        assert not limit or (total, free) == (limit, limit - size)
        assert client.run("query()") == [0, total, free, total - free]
        assert client.run("query_v2()") == [0, 0x2000028, total, 0, free, total - free]


def test_other_devices_and_errors_pass(started: tuple[CudaClient, ProcessConnection]) -> None:
    client, _ = started
    assert client.run("query(0)") == REAL
    assert client.run("query_v2(0)") == [0, 0x2000028, 900, 50, 300, 550]
    assert client.run("nvml.nvmlDeviceGetMemoryInfo(c_void_p(1), None)") == 2


def test_nvml_hooks_pass_when_the_shim_is_disabled(machine: NativeHost, folder: Path) -> None:
    client = start(machine, folder, GPUSHARE_DISABLE="1")
    client.run(QUERY)
    client.run("cuda = Cuda()")
    assert client.run("query()") == REAL


def test_nvml_is_never_loaded_by_the_shim(machine: NativeHost, coordinator: ScriptedCoordinator, folder: Path) -> None:
    client = start(machine, folder)
    client.join(coordinator)
    assert client.run("cuda.info()[0] > 0")
    assert client.run("[function(None, None) for function in [ctypes.CDLL(None).nvmlDeviceGetMemoryInfo]]") == [12]
    assert "nvidia-ml" not in client.run("open('/proc/self/maps').read()")


def test_link_time_symbols(machine: NativeHost, coordinator: ScriptedCoordinator, folder: Path) -> None:
    source, program = folder / "linked.c", folder / "linked"
    source.write_text(LINKED)
    cuda = machine.environment()["LD_LIBRARY_PATH"]
    libraries = [f"-L{cuda}", "-l:libcuda.so.1", f"-L{folder}", "-l:libnvidia-ml.so.1", f"-Wl,-rpath,{cuda}:{folder}"]
    subprocess.run(["cc", "-o", str(program), str(source), *libraries], check=True)
    done: Any = subprocess.Popen(
        [str(program)], env=machine.environment(FAKE_UUID="GPU-none"), stdout=subprocess.PIPE, text=True
    )
    uuid = coordinator.accept().welcome().hello["devices"][0]["uuid"]
    assert done.communicate(timeout=60)[0] == "[900, 900]\n", "the answer for another device must be NVML's own"
    done = subprocess.Popen([str(program)], env=machine.environment(FAKE_UUID=uuid), stdout=subprocess.PIPE, text=True)
    total = coordinator.accept().welcome().hello["devices"][0]["memory"]
    assert done.communicate(timeout=60)[0] == f"[900, {total}]\n"
