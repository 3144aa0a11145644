/* The mode "swap": device memory is physical memory of our own making, which leaves the device and comes back at the same
 * addresses. Where it is needs no guess, and no page fault moves it; in return a client must fit on the device. */
#include "swap.h"

#include <stdio.h>

static CUresult allocate(CUdeviceptr *address, size_t bytes, struct entry *entry) {
    struct span *span = NULL;
    pthread_mutex_lock(&movement_lock);
    CUresult result = bytes <= GRAIN / 2 ? chunk_allocate(bytes, address, &span) : span_new(bytes, &span);
    pthread_mutex_unlock(&movement_lock);
    if (result != CUDA_SUCCESS)
        return result;
    if (!span->chunk)
        *address = span->base;
    entry->kind = SWAPPED;
    entry->of = (uint64_t)(uintptr_t)span;
    return result;
}

/* Work may still use it: cuMemFree waits, and so must we before the memory is unmapped or another's. */
static CUresult release(const struct entry *entry) {
    struct span *span = (struct span *)(uintptr_t)entry->of;
    pthread_mutex_lock(&movement_lock);
    CUresult result = span->chunk ? chunk_free(span, entry->key, entry->bytes) : span_end(span);
    pthread_mutex_unlock(&movement_lock);
    return result;
}

static void describe(char *text, size_t room) {
    snprintf(text, room, "swap: copied to the host and back with the turns, %s of it pinned",
             size_text(shim.environment.pinned).text);
}

const struct memory_mode mode_swap = {
    .name = "swap",
    .number = GPUSHARE_MEMORY_SWAP,
    .beside = true,
    .allocate = allocate,
    .release = release,
    .evict = swap_evict,
    .restore = swap_restore,
    .ahead = swap_ahead,
    .most = swap_most,
    .describe = describe,
};
