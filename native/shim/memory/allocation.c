/* Release of allocations: of the memory, and of its part of the account. */
#include "memory/memory.h"

CUresult memory_release(const struct entry *entry) {
    return entry->kind == MEMORY_DEVICE || entry->kind == MEMORY_MANAGED ? REAL(cuMemFree_v2)((CUdeviceptr)entry->key)
                                                                         : shim.mode->release(entry);
}

void memory_unaccount(const struct entry *entry) {
    if (entry->references == ENTRY_EVICTED && !is_unmovable(entry->kind))
        account_note_evicted(-(int64_t)entry->bytes);
    account_release(entry->bytes, is_unmovable(entry->kind));
    pool_figures_remove(entry->pool, entry->bytes);
}
