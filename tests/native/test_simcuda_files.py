"""Tests of the files of the simulated machine: its parameters, its state and the execution log."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ..driver_facts.harness import MIB, MS, PTX, Cuda, environment, running_process
from . import simlog
from .test_simcuda_multiprocess import FAST, read_line, send


def logged(cuda: Cuda) -> None:
    memory = cuda.cuMemAlloc(MIB)
    cuda.cuMemcpyHtoD(memory, bytes(4096), 4096)
    cuda.cuMemsetD8(memory, 1, 512)
    for _ in range(20000):
        cuda.launch("spin", 0)
    before = time.monotonic_ns()
    cuda.launch("spin", 20 * MS)
    cuda.cuCtxSynchronize()
    send(str(time.monotonic_ns() - before))
    input()


def test_the_log_survives_a_kill(tmp_path: Path) -> None:
    conf, log = tmp_path / "machine.conf", tmp_path / "log"
    conf.write_text(FAST)
    log.mkdir()
    more = {"GPUSHARE_SIM_CONFIG": str(conf), "GPUSHARE_SIM_LOG": str(log)}
    with running_process(logged, environment(tmp_path / "state", **more)) as process:
        spin_ns = int(read_line(process))
        process.kill()
        process.wait()
    executions = simlog.read_all(log)[process.pid]
    assert [execution.kind for execution in executions[:3]] == ["host to device", "set", "launch"]
    assert [execution.bytes for execution in executions[:2]] == [4096, 512]
    assert len(executions) == 20003
    assert [execution.sequence for execution in executions] == list(range(20003))
    assert all(execution.pid == process.pid and execution.begin_ns <= execution.end_ns for execution in executions)
    assert 19.5 * MS <= executions[-1].end_ns - executions[-1].begin_ns <= spin_ns
    assert executions[-1].end_ns < time.monotonic_ns()
    assert simlog.overlap_seconds([executions]) == 0


def test_overlap_is_found() -> None:
    def execution(begin: int, end: int, device: int = 0) -> simlog.Execution:
        return simlog.Execution(begin, end, 1, "launch", device, 0, 0, 0)

    second = 1_000_000_000
    apart = [[execution(1, 1 * second), execution(3 * second, 4 * second)], [execution(second, 3 * second)]]
    assert simlog.overlap_seconds(apart) == 0
    assert simlog.overlap_seconds([*apart, [execution(2 * second, 5 * second, device=1)]]) == 0
    assert simlog.overlap_seconds([[execution(1, 3 * second)], [execution(2 * second, 4 * second)]]) == 1


def describe(variables: dict[str, str]) -> tuple[int, object]:
    """Call simcuda_describe in a new process with these variables, and return its status and the parsed JSON."""
    code = """if True:
        import ctypes, json, os, threading
        buffer = ctypes.create_string_buffer(65536)
        code = ctypes.CDLL("libcuda.so.1").simcuda_describe(buffer, ctypes.c_size_t(65536))
        tasks = len(os.listdir("/proc/self/task"))
        print(json.dumps([code, tasks, os.path.exists(os.environ["GPUSHARE_SIM_STATE"])]), buffer.value.decode())"""
    done = subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True)
    decoder = json.JSONDecoder()
    (result, tasks, exists), end = decoder.raw_decode(done.stdout)
    assert tasks == 1 and not exists
    return result, json.loads(done.stdout[end:])


def test_description_is_readable_without_using_the_devices(tmp_path: Path) -> None:
    code, devices = describe(environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="2", GPUSHARE_SIM_MEMORY="2GiB"))
    assert code > 0 and isinstance(devices, list)
    assert [(device["index"], device["memory"], device["simulated"]) for device in devices] == [
        (0, 2 << 30, True),
        (1, 2 << 30, True),
    ]
    assert len({device["uuid"] for device in devices}) == 2
    assert all(device["uuid"].startswith("GPU-53494d") and len(device["uuid"]) == 40 for device in devices)
    again = describe(environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="2", GPUSHARE_SIM_MEMORY="2GiB"))[1]
    other_file = describe(environment(tmp_path / "other", GPUSHARE_SIM_DEVICES="2"))[1]
    assert again == devices and isinstance(other_file, list) and other_file[0]["uuid"] != devices[0]["uuid"]


def visible(cuda: Cuda) -> None:
    count = cuda.cuDeviceGetCount()
    send(json.dumps([bytes(cuda.cuDeviceGetUuid(cuda.cuDeviceGet(i)).bytes).hex() for i in range(count)]))


def test_visible_devices(tmp_path: Path) -> None:
    variables = environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="3")
    devices = describe(variables)[1]
    assert isinstance(devices, list)
    uuids = [device["uuid"] for device in devices]

    def visible_uuids(choice: str) -> list[str]:
        with running_process(visible, variables | {"CUDA_VISIBLE_DEVICES": choice}) as process:
            return [f"GPU-{u[:8]}-{u[8:12]}-{u[12:16]}-{u[16:20]}-{u[20:]}" for u in json.loads(read_line(process))]

    assert visible_uuids("2,0") == [uuids[2], uuids[0]]
    assert visible_uuids(uuids[1]) == [uuids[1]]
    assert visible_uuids("1,-1,0") == [uuids[1]]
    with running_process(visible, variables | {"CUDA_VISIBLE_DEVICES": ""}) as process:
        assert read_line(process) == ""  # cuInit found no device


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("memory = 1", 1),
        ("[device]\nmemory = lots", 2),
        ("time_scale 3", 1),
        ("[device]\ncolour = red", 2),
        ("[device]\ncard = X", 2),
    ],
)
def test_the_error_has_the_line_of_an_invalid_parameter(tmp_path: Path, text: str, line: int) -> None:
    (tmp_path / "bad.conf").write_text(text)
    code, error = describe(environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "bad.conf")))
    assert code == -1
    assert error == {"error": f"{tmp_path}/bad.conf:{line}: not understood"}


def two_devices(cuda: Cuda) -> None:
    total = [cuda.cuDeviceTotalMem(cuda.cuDeviceGet(i)) for i in range(2)]
    cuda.cuCtxSetCurrent(cuda.cuDevicePrimaryCtxRetain(cuda.cuDeviceGet(1)))
    free = cuda.cuMemGetInfo()[0]
    cuda.cuMemAlloc(16 * MIB)
    assert cuda.cuMemGetInfo()[0] == free - 16 * MIB
    cuda.cuCtxSetCurrent(cuda.context)
    send(
        json.dumps([total, cuda.cuDeviceGetName(32, cuda.cuDeviceGet(1)).split(b"\0")[0].decode(), cuda.cuMemGetInfo()])
    )


def test_parameters_of_several_devices(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text(
        "# two devices\nslice = 1 ms\n[device]\nmemory = 64 MiB\n[device]\nname = Big # one\nmemory = 3 GiB\n"
        "fault_bandwidth = 4 GiB/s\nlaunch_overhead = 10 us\ncontext_memory = 0\n"
    )
    variables = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))
    with running_process(two_devices, variables) as process:
        total, name, info = json.loads(read_line(process))
    assert total == [64 * MIB, 3 << 30] and name == "Big"
    assert info == [48 * MIB, 64 * MIB]


def sizes_of_contexts(cuda: Cuda) -> None:
    free, total = cuda.cuMemGetInfo()
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    sizes = [total, total - free, free - cuda.cuMemGetInfo()[0]]
    cuda.cuCtxDestroy(context)
    send(json.dumps([cuda.cuDeviceGetName(32, cuda.device).split(b"\0")[0].decode(), *sizes]))


def test_a_named_card_has_large_contexts(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text("[device]\ncard = H200\nmemory = 4 GiB\n")
    variables = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))
    with running_process(sizes_of_contexts, variables) as process:
        assert json.loads(read_line(process)) == ["Simulated H200", 4 << 30, 524 * MIB, 524 * MIB]


def modules_and_libraries(cuda: Cuda) -> None:
    image = PTX.read_bytes() + b"\0"
    free = [cuda.cuMemGetInfo()[0]]
    library = cuda.cuLibraryLoadData(image, None, None, 0, None, None, 0)
    free.append(cuda.cuMemGetInfo()[0])
    context = cuda.cuCtxCreate(None, 0, cuda.device)  # with the library
    cuda.cuModuleLoadData(image)
    free.append(cuda.cuMemGetInfo()[0])
    cuda.cuLibraryUnload(library)
    free.append(cuda.cuMemGetInfo()[0])
    cuda.cuCtxDestroy(context)
    cuda.cuCtxSetCurrent(cuda.context)
    free.append(cuda.cuMemGetInfo()[0])
    send(json.dumps([size // MIB for size in free]))


def test_modules_and_libraries_take_memory_until_their_end(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text("[device]\nmemory = 64 MiB\ncontext_memory = 8 MiB\nmodule_memory = 3 MiB\n")
    variables = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))
    with running_process(modules_and_libraries, variables) as process:
        assert json.loads(read_line(process)) == [53, 50, 36, 42, 53]


def test_the_shared_file_is_private_and_a_readable_one_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with running_process(visible, environment(state)) as process:
        assert read_line(process) != "[]"
    assert state.stat().st_mode & 0o777 == 0o600
    state.chmod(0o644)
    with running_process(visible, environment(state)) as process:
        assert read_line(process) == ""
    assert not list(tmp_path.glob("*.new"))


def test_devices_of_every_user_are_identified_by_their_file(tmp_path: Path) -> None:
    state = tmp_path / "state"
    of_all_users = environment(state, GPUSHARE_SIM_SHARED="1")
    uuid = "GPU-53494d00-0000-0000"  # uid 0 for the devices of all users
    assert str(describe(of_all_users)[1]).count(uuid) == 1
    with running_process(visible, of_all_users) as process:
        assert uuid.replace("GPU-", "").replace("-", "") in read_line(process)
    assert state.stat().st_mode & 0o777 == 0o666
    # A driver with private devices refuses the file of all users.
    with running_process(visible, environment(state)) as process:
        assert read_line(process) == ""
    code, error = describe(environment(tmp_path / "other", GPUSHARE_SIM_SHARED="yes"))
    assert code == -1 and error == {"error": "GPUSHARE_SIM_SHARED=yes: 0 or 1 is needed"}
