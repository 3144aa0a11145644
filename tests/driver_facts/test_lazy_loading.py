"""Facts about code that loads when a context first needs it (see test_facts.py)."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from .harness import Cuda, on_driver
from .test_contexts import CONFIG, IMAGE, INVALID_VALUE, MIB, MODULES, OUT_OF_MEMORY, fill

UNKNOWN = 999
ZERO_TIME = ((0,), (ctypes.c_uint64,))  # parameters of the function `spin`


def load_library(cuda: Cuda) -> tuple[Any, Any]:
    """Return a new library, and the handle of its kernel `spin`."""
    library = cuda.cuLibraryLoadData(IMAGE, None, None, 0, None, None, 0)
    return library, cuda.cuLibraryGetKernel(library, b"spin")


def launch(cuda: Cuda, kernel: Any) -> int:
    return cuda.code("cuLaunchKernel", cuda.driver.CUfunction(int(kernel)), 1, 1, 1, 1, 1, 1, 0, 0, ZERO_TIME, 0)


@on_driver(CUDA_MODULE_LOADING="")
def test_loading_is_lazy_by_default(cuda: Cuda) -> None:
    """Without CUDA_MODULE_LOADING, and with the value DEFAULT, the driver loads lazily.

    Source: CUDA programming guide, "Lazy Loading" (on Linux since CUDA 12.2) and "CUDA Environment Variables". Seen
    on an H200.
    """
    assert int(cuda.cuModuleGetLoadingMode()) == 2


@on_driver()
def test_loading_is_eager_by_choice(cuda: Cuda) -> None:
    """With CUDA_MODULE_LOADING=EAGER, cuModuleGetLoadingMode returns CU_MODULE_EAGER_LOADING.

    Source: CUDA programming guide, "CUDA Environment Variables". Seen on an H200.
    """
    assert int(cuda.cuModuleGetLoadingMode()) == 1


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG, CUDA_MODULE_LOADING="LAZY")
def test_the_launch_of_a_kernel_handle_loads_its_library(cuda: Cuda) -> None:
    """On a full device a lazy library can be loaded, and its kernels found. The first launch of a kernel handle fails
    with CUDA_ERROR_OUT_OF_MEMORY. After memory has been freed, the next launch fails with CUDA_ERROR_UNKNOWN.

    Source: documentation of cuLibraryLoadData ("will only be loaded when a function is needed for that context, such
    as a kernel launch"). Seen on an H200.
    """
    memory = cuda.cuMemAlloc(32 * MIB)
    fill(cuda, 64 * MIB)
    for _ in range(MODULES):
        _, kernel = load_library(cuda)
        code = launch(cuda, kernel)
        if code:
            break
    assert code == OUT_OF_MEMORY
    cuda.cuMemFree(memory)
    assert launch(cuda, kernel) == UNKNOWN


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG, CUDA_MODULE_LOADING="LAZY")
def test_the_function_of_a_kernel_handle_loads_its_library(cuda: Cuda) -> None:
    """On a full device cuKernelGetFunction fails with CUDA_ERROR_OUT_OF_MEMORY for a lazy library.

    Source: CUDA programming guide, "CUDA Environment Variables" (loading is delayed until a function handle is
    extracted). Seen on an H200.
    """
    fill(cuda, 64 * MIB)
    codes = (cuda.code("cuKernelGetFunction", load_library(cuda)[1]) for _ in range(MODULES))
    assert next(code for code in codes if code) == OUT_OF_MEMORY


@pytest.mark.whole_card
@on_driver(GPUSHARE_SIM_CONFIG=CONFIG, CUDA_MODULE_LOADING="LAZY")
def test_cukernelgetfunction_works_after_memory_has_been_freed(cuda: Cuda) -> None:
    """A failed cuKernelGetFunction can be repeated, unlike the launch of a kernel handle.

    Source: documentation of cuKernelGetFunction, its results. Not yet seen on a GPU.
    """
    memory = cuda.cuMemAlloc(32 * MIB)
    fill(cuda, 64 * MIB)
    kernels = (load_library(cuda)[1] for _ in range(MODULES))
    kernel = next(kernel for kernel in kernels if cuda.code("cuKernelGetFunction", kernel))
    cuda.cuMemFree(memory)
    cuda.cuKernelGetFunction(kernel)
    assert launch(cuda, kernel) == 0
    cuda.cuCtxSynchronize()


@on_driver(CUDA_MODULE_LOADING="LAZY")
def test_a_function_that_the_program_has_got_is_loaded(cuda: Cuda) -> None:
    """cuFuncIsLoaded returns 1 for a function of cuModuleGetFunction or of cuKernelGetFunction, cuFuncLoad has no
    effect on such a function, and a null pointer is refused.

    Source: CUDA programming guide, "Lazy Loading"; documentation of cuFuncIsLoaded and cuFuncLoad. Seen on an H200.
    """
    for function in (cuda.functions["spin"], cuda.cuKernelGetFunction(load_library(cuda)[1])):
        assert int(cuda.cuFuncIsLoaded(function)) == 1
        cuda.cuFuncLoad(function)
        assert int(cuda.cuFuncIsLoaded(function)) == 1
    is_loaded = ctypes.CDLL("libcuda.so.1").cuFuncIsLoaded
    assert is_loaded(None, ctypes.c_void_p(int(cuda.functions["spin"]))) == INVALID_VALUE
