"""Tests of the memory that libraries take in each context on the simulated driver, with lazy and with eager loading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..driver_facts.harness import MIB, Cuda, on_driver
from ..driver_facts.test_contexts import CONFIG, OUT_OF_MEMORY, fill
from ..driver_facts.test_lazy_loading import ZERO_TIME, launch, load_library

CODE = 4 * MIB  # module_memory of CONFIG
NOT_LOADED, LOADED = 0, 1
lazily = on_driver(GPUSHARE_SIM_CONFIG=CONFIG, CUDA_MODULE_LOADING="LAZY")


def free_bytes(cuda: Cuda) -> int:
    return int(cuda.cuMemGetInfo()[0])


def function_of(cuda: Cuda, kernel: Any) -> Any:
    return cuda.driver.CUfunction(int(kernel))


def loading_state(cuda: Cuda, kernel: Any) -> int:
    return int(cuda.cuFuncIsLoaded(function_of(cuda, kernel)))


@lazily
def test_a_lazy_library_takes_memory_in_each_context_that_launches_its_kernel(cuda: Cuda) -> None:
    library, kernel = load_library(cuda)
    second = cuda.cuCtxCreate(None, 0, cuda.device)
    free = free_bytes(cuda)
    for context in (cuda.context, second):
        cuda.cuCtxSetCurrent(context)
        assert loading_state(cuda, kernel) == NOT_LOADED
        for _ in range(2):
            assert launch(cuda, kernel) == 0
            assert loading_state(cuda, kernel) == LOADED
        free -= CODE
        assert free_bytes(cuda) == free
    cuda.cuCtxSynchronize()
    cuda.cuLibraryUnload(library)
    assert free_bytes(cuda) == free + 2 * CODE


@lazily
def test_the_end_of_a_context_ends_the_code_of_libraries_there(cuda: Cuda) -> None:
    library, kernel = load_library(cuda)
    free = free_bytes(cuda)
    for _ in range(2):
        context = cuda.cuCtxCreate(None, 0, cuda.device)
        cuda.cuFuncLoad(function_of(cuda, kernel))
        cuda.cuCtxDestroy(context)
    cuda.cuCtxSetCurrent(cuda.context)
    assert free_bytes(cuda) == free
    assert loading_state(cuda, kernel) == NOT_LOADED
    cuda.cuLibraryUnload(library)
    assert free_bytes(cuda) == free


@lazily
def test_a_green_context_uses_the_code_of_the_primary_context(cuda: Cuda) -> None:
    kind = cuda.driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    groups, _, _ = cuda.cuDevSmResourceSplitByCount(1, cuda.cuDeviceGetDevResource(cuda.device, kind), 0, 8)
    green = cuda.cuGreenCtxCreate(cuda.cuDevResourceGenerateDesc(groups, 1), cuda.device, 1)
    _, kernel = load_library(cuda)
    cuda.cuFuncLoad(function_of(cuda, kernel))
    free = free_bytes(cuda)
    cuda.cuCtxSetCurrent(cuda.cuCtxFromGreenCtx(green))
    assert loading_state(cuda, kernel) == LOADED
    assert launch(cuda, kernel) == 0
    assert free_bytes(cuda) == free


CALLS: dict[str, Callable[[Cuda, Any, Any], int]] = {
    "cuLibraryGetModule": lambda cuda, library, _: cuda.code("cuLibraryGetModule", library),
    "cuLibraryGetGlobal": lambda cuda, library, _: cuda.code("cuLibraryGetGlobal", library, b"none"),
    "cuKernelGetFunction": lambda cuda, _, kernel: cuda.code("cuKernelGetFunction", kernel),
    "cuFuncLoad": lambda cuda, _, kernel: cuda.code("cuFuncLoad", function_of(cuda, kernel)),
    "cuFuncGetAttribute": lambda cuda, _, kernel: cuda.code(
        "cuFuncGetAttribute", cuda.driver.CUfunction_attribute(0), function_of(cuda, kernel)
    ),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": lambda cuda, _, kernel: cuda.code(
        "cuOccupancyMaxActiveBlocksPerMultiprocessor", function_of(cuda, kernel), 32, 0
    ),
}


@lazily
def test_calls_that_need_a_function_have_no_room_on_a_full_device(cuda: Cuda) -> None:
    memory = cuda.cuMemAlloc(CODE)
    fill(cuda, 64 * MIB)
    for call in CALLS.values():
        library, kernel = load_library(cuda)
        assert call(cuda, library, kernel) == OUT_OF_MEMORY
        assert loading_state(cuda, kernel) == NOT_LOADED
        cuda.cuMemFree(memory)
        assert call(cuda, library, kernel) != OUT_OF_MEMORY
        assert loading_state(cuda, kernel) == LOADED
        cuda.cuLibraryUnload(library)
        memory = cuda.cuMemAlloc(CODE)


def kernel_graph(cuda: Cuda, kernel: Any) -> Any:
    graph, params = cuda.cuGraphCreate(0), cuda.driver.CUDA_KERNEL_NODE_PARAMS()
    params.func = function_of(cuda, kernel)
    params.gridDimX = params.gridDimY = params.gridDimZ = 1
    params.blockDimX = params.blockDimY = params.blockDimZ = 1
    params.kernelParams = ZERO_TIME
    cuda.cuGraphAddKernelNode(graph, None, 0, params)
    return graph


@lazily
def test_a_graph_loads_its_code_at_its_instantiation(cuda: Cuda) -> None:
    memory = cuda.cuMemAlloc(CODE)
    fill(cuda, 64 * MIB)
    _, kernel = load_library(cuda)
    graph = kernel_graph(cuda, kernel)
    assert loading_state(cuda, kernel) == NOT_LOADED
    assert cuda.code("cuGraphInstantiate", graph, 0) == OUT_OF_MEMORY
    cuda.cuMemFree(memory)
    program = cuda.cuGraphInstantiate(graph, 0)
    assert loading_state(cuda, kernel) == LOADED
    cuda.cuGraphLaunch(program, 0)
    cuda.cuCtxSynchronize()


@lazily
def test_a_graph_loads_its_code_into_the_context_of_its_launch_or_upload(cuda: Cuda) -> None:
    for call in (cuda.cuGraphLaunch, cuda.cuGraphUpload):
        cuda.cuCtxSetCurrent(cuda.context)
        _, kernel = load_library(cuda)
        program = cuda.cuGraphInstantiate(kernel_graph(cuda, kernel), 0)
        cuda.cuCtxCreate(None, 0, cuda.device)
        stream = cuda.cuStreamCreate(1)
        assert loading_state(cuda, kernel) == NOT_LOADED
        call(program, stream)
        assert loading_state(cuda, kernel) == LOADED
        cuda.cuStreamSynchronize(stream)


@on_driver(GPUSHARE_SIM_CONFIG=CONFIG)
def test_an_eager_library_is_in_every_context(cuda: Cuda) -> None:
    _, kernel = load_library(cuda)
    assert loading_state(cuda, kernel) == LOADED
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    assert loading_state(cuda, kernel) == LOADED
    free = free_bytes(cuda)
    assert launch(cuda, kernel) == 0
    assert free_bytes(cuda) == free
    cuda.cuCtxDestroy(context)
    cuda.cuCtxSetCurrent(cuda.context)
    memory = cuda.cuMemAlloc(17 * MIB)  # enough for a context without the library
    fill(cuda, 64 * MIB)
    cuda.cuMemFree(memory)
    assert cuda.code("cuCtxCreate", None, 0, cuda.device) == OUT_OF_MEMORY
