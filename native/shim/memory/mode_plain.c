/* The mode "plain": device memory is counted and limited, and never moved. */
#include "memory/memory.h"

/* The shim requests no room for it: plain memory never leaves again, so evicted memory of other clients might not
 * fit any more. */
static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    entry->kind = MEMORY_DEVICE;
    CUresult result = REAL(cuMemAlloc_v2)(address, bytes);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        refusal_log(bytes,
                    "An allocation of %s was refused: the device is full. Memory mode plain moves no memory, so "
                    "this program or another one must free some first.",
                    size_text(bytes).text);
    return result;
}

static CUresult release(const struct entry *entry) {
    return REAL(cuMemFree_v2)((CUdeviceptr)entry->key);
}

const struct memory_mode mode_plain = {
    .name = "plain",
    .number = GPUSHARE_MEMORY_PLAIN,
    .is_unmovable = true,
    .allocate = allocate,
    .release = release,
};
