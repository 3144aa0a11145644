"""Facts about the device memory of contexts and modules (see test_facts.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import MIB, PTX, Cuda, on_driver
from .vmm import free_bytes

INVALID_VALUE = 1
OUT_OF_MEMORY = 2
MODULES = 4096  # at most, until a full device has no room for one more
IMAGE = PTX.read_bytes() + b"\0"
CONFIG = str(Path(__file__).parent / "module_memory.conf")


def fill(cuda: Cuda, size: int) -> None:
    """Allocate in steps of `size` bytes, then of smaller ones, until the device is full."""
    while size >= MIB:
        if cuda.code("cuMemAlloc", size):
            size //= 2


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG)
def test_a_context_takes_device_memory_until_its_end(cuda: Cuda) -> None:
    """A context takes device memory that no allocation shows.

    Source: CUDA programming guide, "Context"; measured by PyTorch (pull request 86509). Seen on an H200.
    """
    before = free_bytes(cuda)
    context = cuda.cuCtxCreate(None, 0, cuda.device)
    assert free_bytes(cuda) <= before - MIB
    cuda.cuCtxDestroy(context)
    cuda.cuCtxSetCurrent(cuda.context)
    assert free_bytes(cuda) == before


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG)
def test_a_full_device_has_no_room_for_a_context(cuda: Cuda) -> None:
    """cuCtxCreate fails with CUDA_ERROR_OUT_OF_MEMORY, and works after memory has been freed.

    Source: documentation of cuCtxCreate, its results. Seen on an H200.
    """
    memory = cuda.cuMemAlloc(free_bytes(cuda) // 2)
    fill(cuda, 64 * MIB)
    assert cuda.code("cuCtxCreate", None, 0, cuda.device) == OUT_OF_MEMORY
    cuda.cuMemFree(memory)
    cuda.cuCtxCreate(None, 0, cuda.device)


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG)
def test_a_full_device_has_no_room_for_a_module(cuda: Cuda) -> None:
    """cuModuleLoadData fails with CUDA_ERROR_OUT_OF_MEMORY, and works after a module has been unloaded.

    Source: documentation of cuModuleLoad, on memory for functions and data. Seen on an H200.
    """
    fill(cuda, 64 * MIB)
    codes = (cuda.code("cuModuleLoadData", IMAGE) for _ in range(MODULES))
    assert next(code for code in codes if code) == OUT_OF_MEMORY
    cuda.cuModuleUnload(cuda.module)
    cuda.cuModuleLoadData(IMAGE)


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG, CUDA_MODULE_LOADING="LAZY")
def test_a_lazy_module_takes_memory_for_a_function_when_the_function_is_looked_up(cuda: Cuda) -> None:
    """cuModuleGetFunction fails with CUDA_ERROR_OUT_OF_MEMORY on a full device.

    Source: CUDA programming guide, "Lazy Loading". Seen on an H200.
    """
    fill(cuda, 64 * MIB)
    for _ in range(MODULES):
        module = cuda.cuModuleLoadData(IMAGE)
        code = cuda.code("cuModuleGetFunction", module, b"fill_f32")
        if code:
            break
    assert code == OUT_OF_MEMORY


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG)
def test_a_full_device_has_no_room_for_a_library(cuda: Cuda) -> None:
    """With eager loading, cuLibraryLoadData loads into present contexts, and fails with CUDA_ERROR_OUT_OF_MEMORY.

    Source: documentation of cuLibraryLoadData. Seen on an H200.
    """
    fill(cuda, 64 * MIB)
    codes = (cuda.code("cuLibraryLoadData", IMAGE, None, None, 0, None, None, 0) for _ in range(MODULES))
    assert next(code for code in codes if code) == OUT_OF_MEMORY


@on_driver(CUDA_MODULE_LOADING="LAZY")
def test_the_loading_mode_is_that_of_the_environment(cuda: Cuda) -> None:
    """cuModuleGetLoadingMode returns the mode. (A null pointer ends the process with SIGSEGV on an H200.)

    Source: documentation of cuModuleGetLoadingMode. Seen on an H200.
    """
    assert int(cuda.cuModuleGetLoadingMode()) == 2


@on_driver()
def test_blocks_that_share_a_multiprocessor_share_its_memory(cuda: Cuda) -> None:
    """cuOccupancyAvailableDynamicSMemPerBlock returns the memory with which so many blocks fit on a multiprocessor.

    Source: documentation of cuOccupancyAvailableDynamicSMemPerBlock. Not yet seen on a card.
    """
    function = cuda.functions["spin"]
    sizes = [int(cuda.cuOccupancyAvailableDynamicSMemPerBlock(function, blocks, 128)) for blocks in (1, 4)]
    assert sizes[0] >= sizes[1] > 0
    assert int(cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, 128, sizes[1])) >= 4


@on_driver()
def test_settings_of_core_dumps_keep_their_values(cuda: Cuda) -> None:
    """A dump would trigger the host by default, and its file can be named.

    Source: documentation of cuCoredumpGetAttributeGlobal and cuCoredumpSetAttributeGlobal. Not yet seen on a card.
    """
    settings = cuda.driver.CUcoredumpSettings
    assert cuda.cuCoredumpGetAttributeGlobal(settings.CU_COREDUMP_TRIGGER_HOST) is True
    cuda.cuCoredumpSetAttributeGlobal(settings.CU_COREDUMP_TRIGGER_HOST, False)
    cuda.cuCoredumpSetAttributeGlobal(settings.CU_COREDUMP_FILE, b"named.by.the.program")
    assert cuda.cuCoredumpGetAttributeGlobal(settings.CU_COREDUMP_TRIGGER_HOST) is False
    assert cuda.cuCoredumpGetAttributeGlobal(settings.CU_COREDUMP_FILE) == b"named.by.the.program"


@on_driver()
def test_a_context_has_its_own_settings_of_core_dumps(cuda: Cuda) -> None:
    """A context begins with the settings of the process, and no later change of either reaches the other.

    The pipe of dumps cannot be set for one context.

    Source: documentation of cuCoredumpSetAttribute and CU_CTX_COREDUMP_ENABLE. Not yet seen on a card.
    """
    settings = cuda.driver.CUcoredumpSettings
    cuda.cuCoredumpSetAttributeGlobal(settings.CU_COREDUMP_FILE, b"of.the.process")
    context = cuda.cuCtxCreate(None, int(cuda.driver.CUctx_flags.CU_CTX_COREDUMP_ENABLE), cuda.device)
    assert cuda.cuCoredumpGetAttribute(settings.CU_COREDUMP_FILE) == b"of.the.process"
    assert cuda.cuCoredumpGetAttribute(settings.CU_COREDUMP_ENABLE_ON_EXCEPTION) is True
    assert cuda.cuCoredumpGetAttributeGlobal(settings.CU_COREDUMP_ENABLE_ON_EXCEPTION) is False
    cuda.cuCoredumpSetAttribute(settings.CU_COREDUMP_FILE, b"of.the.context")
    cuda.cuCoredumpSetAttributeGlobal(settings.CU_COREDUMP_LIGHTWEIGHT, True)
    assert cuda.cuCoredumpGetAttribute(settings.CU_COREDUMP_FILE) == b"of.the.context"
    assert cuda.cuCoredumpGetAttribute(settings.CU_COREDUMP_LIGHTWEIGHT) is False
    assert cuda.code("cuCoredumpSetAttribute", settings.CU_COREDUMP_PIPE, b"of.the.context")
    cuda.cuCtxDestroy(context)
    assert cuda.cuCoredumpGetAttributeGlobal(settings.CU_COREDUMP_FILE) == b"of.the.process"
    cuda.cuCtxSetCurrent(cuda.context)
    assert cuda.cuCoredumpGetAttribute(settings.CU_COREDUMP_ENABLE_ON_EXCEPTION) is False
