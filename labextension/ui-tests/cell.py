# Keeps the GPU busy for some seconds, through the driver alone: the kernel's environment needs no GPU library.
import ctypes
import time

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, f"{name}: CUDA error {result}"


context, pointer, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(1 << 20)
call("cuInit", 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(pointer), size)
end = time.monotonic() + 8
while time.monotonic() < end:
    call("cuMemsetD8_v2", pointer, 1, size)
    call("cuCtxSynchronize")
call("cuMemFree_v2", pointer)
print("cell done")
