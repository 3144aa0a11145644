/* Release of allocations: of the memory, and of its part of the account. */
#include "memory/freed/freed.h"

CUresult memory_release(const struct entry *entry) {
    return entry->kind == MEMORY_DEVICE || entry->kind == MEMORY_MANAGED ? REAL(cuMemFree_v2)((CUdeviceptr)entry->key)
                                                                         : shim.mode->release(entry);
}

void memory_unaccount(const struct entry *entry) {
    struct entry_sums ended = {0};
    entry_sums_add(&ended, entry);
    account_release_entries(&ended);
    pool_figures_remove(entry->pool, entry->bytes);
}
