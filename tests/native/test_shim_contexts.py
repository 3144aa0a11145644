"""Tests of contexts, modules and graphs on a full device: the process requests room, and calls the driver again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from .conftest import CudaClient, NativeHost
from .fake_coordinator import ProcessConnection, ScriptedCoordinator, wait_until
from .test_shim_graphs import CAPTURED

MIB = 1 << 20
CONTEXT_MIB, MODULE_MIB = 40, 8
Started = tuple[CudaClient, ProcessConnection]
MODES = ["swap", "unified", "plain"]
OUT_OF_MEMORY = 2
CONTEXT = "cuda = Cuda(start=False); cuda.cuInit(0); context = c_void_p()"
MODULE = "image = Path(os.environ['TEST_PTX']).read_bytes(); module = c_void_p()"
CREATE = "cuda.cuCtxCreate_v2(byref(context), 0, 0)"
RETAIN = "cuda.cuDevicePrimaryCtxRetain(byref(context), 0)"
LOADS = {
    "module": "cuda.cuModuleLoadData(byref(module), image)",
    "library": "cuda.cuLibraryLoadData(byref(module), image, None, None, 0, None, None, 0)",
}

LIBRARY = """
import struct
image = Path(os.environ['TEST_PTX']).read_bytes() + b'.global .align 4 .b8 table[4096];'
library, kernel, found, graph, node, exec_ = (c_void_p() for _ in range(6))
assert cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0) == 0
assert cuda.cuLibraryGetKernel(byref(kernel), library, b'spin') == 0
number, zero = c_int(), c_uint64(0)
values = (c_void_p * 1)(ctypes.addressof(zero))
launched = struct.pack('<Q7I4xQQ', kernel.value, 1, 1, 1, 1, 1, 1, 0, ctypes.addressof(values), 0)
"""
CONFIG = "config = struct.pack('<7I4xQQI4x', 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"
LAUNCHES = {
    "cuLaunchKernel": "cuda.cuLaunchKernel(f, *rest)",
    "cuLaunchKernelEx": "cuda.cuLaunchKernelEx(config, f, *rest[8:])",
    "cuLaunchCooperativeKernel": "cuda.cuLaunchCooperativeKernel(f, *rest[:9])",
}
ADD_NODE = "cuda.cuGraphCreate(byref(graph), 0), cuda.cuGraphAddKernelNode(byref(node), graph, None, 0, launched)"
LAZY_LOADS = {
    "module of a library": "cuda.cuLibraryGetModule(byref(found), library)",
    "function of a kernel": "cuda.cuKernelGetFunction(byref(found), kernel)",
    "attribute": "cuda.cuFuncGetAttribute(byref(number), 0, kernel)",
    "occupancy": "cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(number), kernel, 32, c_size_t(0))",
    "load": "cuda.cuFuncLoad(kernel)",
    "variable": "cuda.cuLibraryGetGlobal(byref(c_uint64()), None, library, b'table')",
    "graph": "cuda.cuGraphInstantiateWithFlags(byref(exec_), graph, c_uint64(0))",
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Return the file of a device of 256 MiB, on which a context takes 40 MiB and a module 8 MiB."""
    path = tmp_path / "machine.conf"
    path.write_text(
        f"[device]\nmemory = 256 MiB\ncontext_memory = {CONTEXT_MIB} MiB\nmodule_memory = {MODULE_MIB} MiB\n"
    )
    return str(path)


def fill_device(machine: NativeHost, coordinator: ScriptedCoordinator, config: str, size: int) -> ProcessConnection:
    """Start a client of mode `swap` with a context, a module, and `size` MiB that stay after its turn."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=config)
    client.begin(process, 1)
    assert client.run(f"cuda.alloc({size} << 20)[0]") == 0
    process.drain(1)
    return process


@pytest.fixture
def holder(machine: NativeHost, coordinator: ScriptedCoordinator, config: str) -> ProcessConnection:
    """Return the process of a client whose idle memory fills the device."""
    return fill_device(machine, coordinator, config, 208)


def newcomer(machine: NativeHost, coordinator: ScriptedCoordinator, config: str, **environment: str) -> Started:
    client = machine.client(GPUSHARE_SIM_CONFIG=config, **environment)
    return client, client.join(coordinator, CONTEXT)


def make_room(requester: ProcessConnection, holder: ProcessConnection) -> None:
    wait_until(lambda: requester.page.report.unmet_bytes > 0)
    holder.page.control.resident_target[0] = 0
    holder.doorbell()


def assert_waits_for_room(started: Started, holder: ProcessConnection, call: str, turn: int = 2) -> None:
    """Assert that the call waits for its turn, requests room there, and succeeds after there is room."""
    client, process = started
    client.start(call)
    process.wait_for_waiting_thread()
    process.open(turn)
    make_room(process, holder)
    assert client.result() == 0
    wait_until(lambda: process.page.report.unmet_bytes == 0)


def test_a_request_for_a_context_fits_the_smallest_device(
    machine: NativeHost, coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    config = tmp_path / "machine.conf"
    config.write_text(f"[device]\n[device]\nmemory = 256 MiB\ncontext_memory = {CONTEXT_MIB} MiB\n")
    client, holder = machine.new_client(
        coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=str(config), CUDA_VISIBLE_DEVICES="1"
    )
    client.begin(holder, 1)
    assert client.run("cuda.alloc(208 << 20)[0]") == 0
    holder.drain(1)
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_CONFIG=str(config))
    process.open(1)
    client.start("cuda.cuDevicePrimaryCtxRetain(byref(c_void_p()), 1)")
    wait_until(lambda: process.page.report.unmet_bytes == 32 << 20)
    make_room(process, holder)
    assert client.result() == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [CREATE, RETAIN])
def test_a_context_waits_for_room_in_its_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, holder: ProcessConnection, mode: str, call: str
) -> None:
    client, process = newcomer(machine, coordinator, config, GPUSHARE_MEMORY_MODE=mode)
    assert_waits_for_room((client, process), holder, call)


@pytest.mark.parametrize("call", LOADS.values(), ids=LOADS)
def test_a_module_waits_for_room_in_its_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, call: str
) -> None:
    client, process = newcomer(machine, coordinator, config, CUDA_MODULE_LOADING="EAGER")
    assert client.run(CREATE) == 0
    holder = fill_device(machine, coordinator, config, 168)
    client.run(MODULE)
    assert_waits_for_room((client, process), holder, call)


def test_a_lazy_module_waits_for_room_for_its_function(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str
) -> None:
    client, process = newcomer(machine, coordinator, config)
    client.run(MODULE)
    assert client.run(f"{CREATE}, {LOADS['module']}") == [0, 0]
    holder = fill_device(machine, coordinator, config, 168)
    client.run("function = c_void_p()")
    assert_waits_for_room((client, process), holder, "cuda.cuModuleGetFunction(byref(function), module, b'fill_f32')")


@pytest.mark.parametrize("call", LAZY_LOADS.values(), ids=LAZY_LOADS)
def test_a_lazy_library_waits_for_room_at_the_call_that_needs_it(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, call: str
) -> None:
    client, process = newcomer(machine, coordinator, config)
    assert client.run(CREATE) == 0
    client.run(LIBRARY)
    assert client.run(ADD_NODE) == [0, 0]
    holder = fill_device(machine, coordinator, config, 168)
    assert_waits_for_room((client, process), holder, call)


def fill_device_in_a_turn(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, started: Started, size: int
) -> ProcessConnection:
    """Let another client fill the device between two turns, and begin the second turn without waiting clients."""
    client, process = started
    process.drain(1)
    holder = fill_device(machine, coordinator, config, size)
    client.begin(process, 3)
    assert client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]
    return holder


def launch_waits_for_room(client: CudaClient, process: ProcessConnection, holder: ProcessConnection, call: str) -> bool:
    """Return whether the launch of `kernel` requests room, and succeeds after there is room."""
    client.run("cuda.functions['spin'] = kernel")
    client.start(call)
    make_room(process, holder)
    launched = client.result() == 0
    wait_until(lambda: process.page.report.unmet_bytes == 0)
    return launched and client.run("cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0]


@pytest.mark.parametrize(
    ("mode", "call"),
    [*((mode, "cuLaunchKernel") for mode in MODES), *(("swap", call) for call in LAUNCHES if call != "cuLaunchKernel")],
)
def test_the_first_launch_of_a_kernel_in_a_turn_waits_for_room_for_its_code(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, mode: str, call: str
) -> None:
    """No other client waits, so the launches of loaded functions pass the gate at once."""
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_CONFIG=config, GPUSHARE_MEMORY_MODE=mode)
    client.begin(process, 1)
    client.run(LIBRARY + CONFIG)
    holder = fill_device_in_a_turn(machine, coordinator, config, (client, process), 160)
    launch = f"cuda.launch('spin', 0, call=lambda f, *rest: {LAUNCHES[call]})"
    assert launch_waits_for_room(client, process, holder, launch)


def test_the_first_launch_of_a_kernel_in_another_context_waits_for_room(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str
) -> None:
    """The kernel of a library has been launched in one context of the thread, and loads in the other context."""
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_CONFIG=config)
    client.begin(process, 1)
    client.run(LIBRARY + "second, module, own = c_void_p(), c_void_p(), c_void_p()")
    client.run("cuda.functions['spin'] = kernel")
    assert client.run("cuda.spin(), cuda.spin(), cuda.cuCtxCreate_v2(byref(second), 0, 0)") == [0, 0, 0]
    client.run("cuda.cuModuleLoadData(byref(module), image), cuda.cuModuleGetFunction(byref(own), module, b'spin')")
    client.run("cuda.functions['spin'] = own")
    holder = fill_device_in_a_turn(machine, coordinator, config, (client, process), 104)
    assert launch_waits_for_room(client, process, holder, "cuda.spin()")


@pytest.mark.parametrize("end", ["library", "context"])
def test_the_first_launch_of_a_kernel_with_the_handle_of_an_ended_one_waits_for_room(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, end: str
) -> None:
    client, process = machine.new_client(coordinator, GPUSHARE_SIM_CONFIG=config)
    client.begin(process, 1)
    client.run(LIBRARY + "before, own, module = cuda.functions['spin'], c_void_p(), c_void_p()")
    if end == "context":
        assert client.run("cuda.cuCtxCreate_v2(byref(found), 0, 0)") == 0
    client.run("cuda.functions['spin'] = kernel")
    assert client.run("cuda.spin(), cuda.spin(), cuda.cuCtxSynchronize()") == [0, 0, 0]
    handles = client.run("kernel.value, found.value")
    if end == "library":
        assert client.run("cuda.cuLibraryUnload(library)") == 0
        client.run("cuda.cuLibraryLoadData(byref(library), image, None, None, 0, None, None, 0)")
        client.run("cuda.cuLibraryGetKernel(byref(kernel), library, b'spin')")
        client.run("cuda.functions['spin'] = before")
    else:
        assert client.run("cuda.cuCtxDestroy_v2(found), cuda.cuCtxCreate_v2(byref(found), 0, 0)") == [0, 0]
        client.run("cuda.cuModuleLoadData(byref(module), image), cuda.cuModuleGetFunction(byref(own), module, b'spin')")
        client.run("cuda.functions['spin'] = own")
    assert client.run("kernel.value, found.value") == handles
    holder = fill_device_in_a_turn(machine, coordinator, config, (client, process), 160 if end == "library" else 112)
    assert launch_waits_for_room(client, process, holder, "cuda.spin()")


@pytest.mark.parametrize("call", ["cuGraphLaunch", "cuGraphUpload", "cuGraphLaunch_ptsz"])
def test_the_first_launch_of_a_graph_waits_for_room_for_its_memory(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, call: str
) -> None:
    """The driver allocates the memory of the graph at its first upload or launch."""
    client, process = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="swap", GPUSHARE_SIM_CONFIG=config)
    client.begin(process, 1)
    client.run(CAPTURED)
    assert client.run("instantiate()") == 0
    process.drain(1)
    holder = fill_device(machine, coordinator, config, 160)
    assert_waits_for_room((client, process), holder, f"cuda.{call}(exec_, one)", turn=3)
    assert client.run("cuda.cuStreamSynchronize(one)") == 0


def test_a_refused_context_gets_the_error_of_the_driver(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, holder: ProcessConnection
) -> None:
    client, process = newcomer(machine, coordinator, config)
    client.start(CREATE)
    process.wait_for_waiting_thread()
    process.open(2)
    wait_until(lambda: process.page.report.unmet_bytes > 0)
    process.page.control.refused_request_seq = process.page.report.unmet_request_seq
    assert client.result() == OUT_OF_MEMORY
    assert "The device has no room for a context, a module or a graph of this program" in machine.log_text()
    wait_until(lambda: process.page.report.unmet_bytes == 0)


def test_SIGINT_ends_the_wait_for_a_context(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str, holder: ProcessConnection
) -> None:
    client, process = newcomer(machine, coordinator, config)
    client.run("signal.signal(signal.SIGINT, signal.default_int_handler)")
    client.start(CREATE)
    process.wait_for_waiting_thread()
    process.open(2)
    wait_until(lambda: process.page.report.unmet_bytes > 0)
    os.kill(client.pid, signal.SIGINT)
    assert client.raw()["error"] == "KeyboardInterrupt"
    wait_until(lambda: process.page.report.unmet_bytes == 0)


def test_a_context_needs_no_turn_where_there_is_room(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str
) -> None:
    client, process = newcomer(machine, coordinator, config, CUDA_MODULE_LOADING="EAGER")
    client.run(MODULE)
    assert client.run(f"{CREATE}, {LOADS['module']}, {LOADS['library']}") == [0, 0, 0]
    assert process.page.report.gate_waits == 0


def test_memory_of_mode_unified_makes_room_by_itself(
    machine: NativeHost, coordinator: ScriptedCoordinator, config: str
) -> None:
    other, holder = machine.new_client(coordinator, GPUSHARE_MEMORY_MODE="unified", GPUSHARE_SIM_CONFIG=config)
    other.begin(holder, 1)
    assert other.run("cuda.launch('fill_f32', cuda.alloc(200 << 20)[1], 1.0, 50 << 20), cuda.cuCtxSynchronize()")
    client, _ = newcomer(machine, coordinator, config)
    assert client.run(CREATE) == 0
