"""The simulated machine as several processes share it: memory, eviction, time, death; parameters; the execution log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from .. import sanitizers
from ..driver_facts.harness import MIB, Cuda, environment, on_driver, program, start
from . import simlog

MS = 1_000_000
FAST = "[device]\nlaunch_overhead = 0\n"


def wait_for(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def elapsed(function: Callable[[], object]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


# Programs: what runs in the processes. They say "ready" and go on at a line on their input.


def say(text: object) -> None:
    print(text, flush=True)


def spin(cuda: Cuda, milliseconds: str, launches: str) -> None:
    cuda.launch("spin", 0)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    began = time.monotonic()
    for _ in range(int(launches)):
        cuda.launch("spin", int(milliseconds) * MS // int(launches))
    cuda.cuCtxSynchronize()
    say(time.monotonic() - began)


def hold(cuda: Cuda, kind: str, mebibytes: str) -> None:
    memory = (
        cuda.cuMemAlloc(int(mebibytes) * MIB) if kind == "plain" else cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    )
    cuda.launch("fill_f32", memory, 1.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    say(cuda.read_f32(memory, int(mebibytes) * MIB // 4 - 1))


def sweep(cuda: Cuda, mebibytes: str, times: str) -> None:
    """Touches all of its unified memory again and again."""
    memory = cuda.cuMemAllocManaged(int(mebibytes) * MIB, 1)
    cuda.launch("fill_f32", memory, 0.0, int(mebibytes) * MIB // 4)
    cuda.cuCtxSynchronize()
    say("ready")
    input()
    began = time.monotonic()
    for _ in range(int(times)):
        cuda.launch("work_f32", memory, int(mebibytes) * MIB // 4, 10 * MS, 0)
    cuda.cuCtxSynchronize()
    say(time.monotonic() - began)
    assert cuda.read_f32(memory, 0) == float(times)


def churn(cuda: Cuda) -> None:
    """Never stops allocating, faulting and freeing: to be killed at any point."""
    say("ready")
    while True:
        plain, managed = cuda.cuMemAlloc(8 * MIB), cuda.cuMemAllocManaged(64 * MIB, 1)
        cuda.launch("fill_f32", managed, 1.0, 16 * MIB)
        cuda.cuMemPrefetchAsync(managed, 8 * MIB, host_location(cuda), 0, 0)
        cuda.cuMemFree(plain)
        cuda.cuMemFree(managed)


def report_free(cuda: Cuda) -> None:
    say("ready")
    for _ in sys.stdin:
        say(cuda.cuMemGetInfo()[0])


def host_location(cuda: Cuda) -> object:
    location = cuda.driver.CUmemLocation()
    location.type = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST
    return location


def device_location(cuda: Cuda) -> object:
    location = cuda.driver.CUmemLocation()
    location.type, location.id = cuda.driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE, 0
    return location


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str]) -> int:
    go(process)
    return int(read_line(process))


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """A machine of its own, without launch overhead."""
    (tmp_path / "machine.conf").write_text(FAST)
    return environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))


@pytest.mark.alone
def test_busy_processes_get_equal_time_slices(machine: dict[str, str]) -> None:
    with program(spin, machine, "400", "40") as first, program(spin, machine, "400", "1") as second:
        assert read_line(first) == read_line(second) == "ready"
        go(first)
        alone = float(read_line(first))
        assert 0.4 <= alone < 0.6
        with program(spin, machine, "400", "40") as third:
            assert read_line(third) == "ready"
            go(second)
            go(third)
            both = [float(read_line(second)), float(read_line(third))]
    assert all(0.72 < seconds < 1.2 for seconds in both), both


def test_an_idle_process_costs_the_others_nothing(machine: dict[str, str]) -> None:
    with program(hold, machine, "plain", "64") as idle, program(spin, machine, "300", "30") as busy:
        assert read_line(idle) == read_line(busy) == "ready"
        go(busy)
        assert 0.3 <= float(read_line(busy)) < 0.5


def test_a_stopped_or_killed_process_does_not_hold_the_device(machine: dict[str, str]) -> None:
    with program(spin, machine, "60000", "1") as endless, program(spin, machine, "200", "1") as busy:
        assert read_line(endless) == read_line(busy) == "ready"
        go(endless)
        time.sleep(0.05)
        endless.kill()
        go(busy)
        assert 0.2 <= float(read_line(busy)) < 0.7


def test_capacity_is_shared_and_a_killed_process_gives_back(machine: dict[str, str]) -> None:
    with program(report_free, machine) as watcher:
        assert read_line(watcher) == "ready"
        before = ask(watcher)
        with program(hold, machine, "plain", "600") as holder:
            assert read_line(holder) == "ready"
            assert ask(watcher) < before - 600 * MIB
            with program(hold, machine, "plain", "600") as refused:
                assert read_line(refused) == ""  # out of memory: it ended
                assert refused.wait() != 0
            holder.kill()
            wait_for(lambda: ask(watcher) == before)
        with program(hold, machine, "plain", "600") as next_one:
            assert read_line(next_one) == "ready"
            go(next_one)
            assert float(read_line(next_one)) == 1.0


def test_unified_memory_of_others_is_evicted_and_keeps_its_data(machine: dict[str, str]) -> None:
    with program(hold, machine, "managed", "700") as first, program(report_free, machine) as watcher:
        assert read_line(first) == read_line(watcher) == "ready"
        free = ask(watcher)
        with program(hold, machine, "plain", "600") as second:  # ordinary memory finds room as well
            assert read_line(second) == "ready"
            assert ask(watcher) < 8 * MIB < free
            go(first)
            assert float(read_line(first)) == 1.0
        wait_for(lambda: ask(watcher) > 500 * MIB)


@pytest.mark.skipif(bool(sanitizers.KIND), reason="compares times with the model's")
def test_working_sets_that_do_not_fit_thrash(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text("[device]\nmemory = 160 MiB\nfault_bandwidth = 512 MiB/s\n")
    machine = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))

    def both(mebibytes: str) -> float:
        with program(sweep, machine, mebibytes, "4") as first, program(sweep, machine, mebibytes, "4") as second:
            assert read_line(first) == read_line(second) == "ready"
            go(first)
            go(second)
            return max(float(read_line(first)), float(read_line(second)))

    assert both("100") > 3 * both("50")


def test_many_killed_processes_leave_nothing_stuck(machine: dict[str, str]) -> None:
    with program(report_free, machine) as watcher:
        assert read_line(watcher) == "ready"
        before = ask(watcher)
        for number in range(12):
            victim = start(churn, machine)
            assert read_line(victim) == "ready"
            time.sleep(0.003 * number)
            victim.kill()
            victim.communicate()
        assert ask(watcher) == before
        with program(spin, machine, "50", "1") as alive:
            assert read_line(alive) == "ready"
            go(alive)
            assert float(read_line(alive)) < 0.2


def execute_again(cuda: Cuda, times: str) -> None:
    """The same process, another program: what it held before is gone."""
    cuda.cuMemAlloc(600 * MIB)
    if int(times):
        arguments = [*sys.orig_argv[:-1], str(int(times) - 1)]
        os.execv(sys.executable, arguments)
    say("ready")


def test_a_process_that_executes_another_program_starts_anew(machine: dict[str, str]) -> None:
    with program(execute_again, machine, "2") as process:
        assert read_line(process) == "ready"


@on_driver()
def test_unified_memory_may_exceed_the_device(cuda: Cuda) -> None:
    total = cuda.cuMemGetInfo()[1]
    arrays = [cuda.cuMemAllocManaged(400 * MIB, 1) for _ in range(3)]
    for number, array in enumerate(arrays):
        cuda.launch("fill_f32", array, float(number), 100 * MIB)
    cuda.cuCtxSynchronize()
    assert cuda.cuMemGetInfo()[0] < 8 * MIB < 1200 * MIB - total
    assert [cuda.read_f32(array, 100 * MIB - 1) for array in arrays] == [0.0, 1.0, 2.0]
    assert cuda.code("cuMemAlloc", 1100 * MIB) == 2


@on_driver()
def test_bulk_prefetch_is_faster_than_faults(cuda: Cuda) -> None:
    memory = cuda.cuMemAllocManaged(256 * MIB, 1)
    cuda.launch("fill_f32", memory, 1.0, 64 * MIB)
    cuda.cuCtxSynchronize()
    free = cuda.cuMemGetInfo()[0]

    def out() -> None:
        cuda.cuMemPrefetchAsync(memory, 256 * MIB, host_location(cuda), 0, 0)
        cuda.cuCtxSynchronize()

    def back_in_bulk() -> None:
        for part in range(0, 256, 64):
            cuda.cuMemPrefetchAsync(int(memory) + part * MIB, 64 * MIB, device_location(cuda), 0, 0)
        cuda.cuCtxSynchronize()

    def touch() -> None:
        cuda.launch("work_f32", memory, 64 * MIB, 0, 0)
        cuda.cuCtxSynchronize()

    out()
    assert cuda.cuMemGetInfo()[0] == free + 256 * MIB
    in_bulk = [elapsed(back_in_bulk)]
    assert cuda.cuMemGetInfo()[0] == free
    by_faults = []
    for _ in range(3):  # a busy machine makes some slower, none faster
        out()
        by_faults.append(elapsed(touch))
        out()
        in_bulk.append(elapsed(back_in_bulk))
    assert min(in_bulk) > 256 / 12288 * 0.9  # 12 GiB/s
    assert min(by_faults) > 256 / 2048 * 0.9  # 2 GiB/s
    assert min(in_bulk) < min(by_faults) / 2
    out()
    touch()
    attribute = cuda.driver.CUmem_range_attribute.CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION
    assert int(cuda.cuMemRangeGetAttribute(4, attribute, memory, 256 * MIB)) == -1


@on_driver(GPUSHARE_SIM_MEMORY="64MiB")
def test_ordinary_memory_is_never_evicted(cuda: Cuda) -> None:
    plain, managed = cuda.cuMemAlloc(40 * MIB), cuda.cuMemAllocManaged(100 * MIB, 1)
    cuda.launch("fill_f32", plain, 3.0, 10 * MIB)
    cuda.launch("fill_f32", managed, 4.0, 25 * MIB)
    cuda.cuCtxSynchronize()
    assert cuda.cuMemGetInfo()[0] < 4 * MIB
    assert cuda.read_f32(managed, 25 * MIB - 1) == 4.0
    assert cuda.code("cuMemAlloc", 16 * MIB) == 2
    cuda.cuMemAlloc(6 * MIB)
    cuda.cuMemFree(managed)
    assert cuda.cuMemGetInfo()[0] == 2 * MIB


def logged(cuda: Cuda) -> None:
    memory = cuda.cuMemAlloc(MIB)
    cuda.cuMemcpyHtoD(memory, bytes(4096), 4096)
    cuda.cuMemsetD8(memory, 1, 512)
    for _ in range(20000):
        cuda.launch("spin", 0)
    cuda.launch("spin", 20 * MS)
    cuda.cuCtxSynchronize()
    say("ready")
    input()


def test_the_log_survives_a_kill(machine: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with program(logged, machine | {"GPUSHARE_SIM_LOG": str(tmp_path / "log")}) as process:
        assert read_line(process) == "ready"
        process.kill()
        process.wait()
    executions = simlog.read_all(tmp_path / "log")[process.pid]
    assert [execution.kind for execution in executions[:3]] == ["host to device", "set", "launch"]
    assert [execution.bytes for execution in executions[:2]] == [4096, 512]
    assert len(executions) == 20003
    assert [execution.sequence for execution in executions] == list(range(20003))
    assert all(execution.pid == process.pid and execution.begin_ns <= execution.end_ns for execution in executions)
    assert 19.5 * MS <= executions[-1].end_ns - executions[-1].begin_ns < 60 * MS
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
    """What simcuda_describe says in a process with these variables."""
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


def test_description_for_those_who_do_not_use_the_devices(tmp_path: Path) -> None:
    code, devices = describe(environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="2", GPUSHARE_SIM_MEMORY="2GiB"))
    assert code > 0 and isinstance(devices, list)
    assert [(device["index"], device["memory"], device["simulated"]) for device in devices] == [
        (0, 2 << 30, True),
        (1, 2 << 30, True),
    ]
    assert len({device["uuid"] for device in devices}) == 2
    assert all(device["uuid"].startswith("GPU-53494d") and len(device["uuid"]) == 40 for device in devices)
    again = describe(environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="2", GPUSHARE_SIM_MEMORY="2GiB"))[1]
    elsewhere = describe(environment(tmp_path / "other", GPUSHARE_SIM_DEVICES="2"))[1]
    assert again == devices and isinstance(elsewhere, list) and elsewhere[0]["uuid"] != devices[0]["uuid"]


def visible(cuda: Cuda) -> None:
    count = cuda.cuDeviceGetCount()
    say(json.dumps([bytes(cuda.cuDeviceGetUuid(cuda.cuDeviceGet(i)).bytes).hex() for i in range(count)]))


def test_visible_devices(tmp_path: Path) -> None:
    variables = environment(tmp_path / "state", GPUSHARE_SIM_DEVICES="3")
    devices = describe(variables)[1]
    assert isinstance(devices, list)
    uuids = [device["uuid"] for device in devices]

    def seen(choice: str) -> list[str]:
        with program(visible, variables | {"CUDA_VISIBLE_DEVICES": choice}) as process:
            return [f"GPU-{u[:8]}-{u[8:12]}-{u[12:16]}-{u[16:20]}-{u[20:]}" for u in json.loads(read_line(process))]

    assert seen("2,0") == [uuids[2], uuids[0]]
    assert seen(uuids[1]) == [uuids[1]]
    assert seen("1,-1,0") == [uuids[1]]
    with program(visible, variables | {"CUDA_VISIBLE_DEVICES": ""}) as process:
        assert read_line(process) == ""  # cuInit found no device


@pytest.mark.parametrize(
    ("text", "line"),
    [("memory = 1", 1), ("[device]\nmemory = lots", 2), ("time_scale 3", 1), ("[device]\ncolour = red", 2)],
)
def test_parameters_that_make_no_sense_are_named(tmp_path: Path, text: str, line: int) -> None:
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
    say(
        json.dumps([total, cuda.cuDeviceGetName(32, cuda.cuDeviceGet(1)).split(b"\0")[0].decode(), cuda.cuMemGetInfo()])
    )


def test_parameters_of_several_devices(tmp_path: Path) -> None:
    (tmp_path / "machine.conf").write_text(
        "# two of them\nslice = 1 ms\n[device]\nmemory = 64 MiB\n[device]\nname = Big # one\nmemory = 3 GiB\n"
        "fault_bandwidth = 4 GiB/s\nlaunch_overhead = 10 us\ncontext_memory = 0\n"
    )
    variables = environment(tmp_path / "state", GPUSHARE_SIM_CONFIG=str(tmp_path / "machine.conf"))
    with program(two_devices, variables) as process:
        total, name, info = json.loads(read_line(process))
    assert total == [64 * MIB, 3 << 30] and name == "Big"
    assert info == [48 * MIB, 64 * MIB]


def test_the_shared_file_is_private_and_others_are_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with program(visible, environment(state)) as process:
        assert read_line(process) != "[]"
    assert state.stat().st_mode & 0o777 == 0o600
    state.chmod(0o644)
    with program(visible, environment(state)) as process:
        assert read_line(process) == ""
    assert not list(tmp_path.glob("*.new"))


def test_devices_of_every_user_are_known_by_their_file_alone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    everybodys = environment(state, GPUSHARE_SIM_SHARED="1")
    uuid = "GPU-53494d00-0000-0000"  # nobody's uid
    assert str(describe(everybodys)[1]).count(uuid) == 1
    with program(visible, everybodys) as process:
        assert uuid.replace("GPU-", "").replace("-", "") in read_line(process)
    assert state.stat().st_mode & 0o777 == 0o666
    with program(visible, environment(state)) as process:  # for whom they are to be private, they are not
        assert read_line(process) == ""
    code, error = describe(environment(tmp_path / "other", GPUSHARE_SIM_SHARED="yes"))
    assert code == -1 and error == {"error": "GPUSHARE_SIM_SHARED=yes: 0 or 1 is needed"}
