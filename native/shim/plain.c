/* The mode "plain": device memory is device memory. It is counted and limited, and never moved. */
#include "shim.h"

#include <stdio.h>

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    entry->kind = DEVICE;
    return REAL(cuMemAlloc_v2)(address, bytes);
}

static CUresult release(const struct entry *entry) {
    return REAL(cuMemFree_v2)((CUdeviceptr)entry->key);
}

static void describe(char *text, size_t room) {
    snprintf(text, room, "plain: what is allocated stays on the device");
}

const struct memory_mode mode_plain = {
    .name = "plain",
    .pinned = true,
    .allocate = allocate,
    .release = release,
    .describe = describe,
};
