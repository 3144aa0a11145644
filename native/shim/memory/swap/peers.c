/* Access of other devices to allocations of the mode "swap". The driver's peer access covers memory of cuMemAlloc and of
 * pools, and no mapped memory, so the shim sets the access of its own allocations. Access is by device: each device that
 * a grant names has access to all allocations on the grant's other device. */
#include "memory/swap/blocks.h"

#include <stdlib.h>

struct grant {
    const void *from;      /* the context whose work has access; NULL for a pool */
    const void *to;        /* the context or the pool of the memory */
    CUdevice device, home; /* with access, and of the memory */
};

static struct {
    struct grant *list;
    uint64_t count, room;
} grants;

static CUmemAccessDesc access_of(CUdevice device, int flags) {
    return (CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags};
}

static bool has_access(CUdevice device, CUdevice home) {
    for (uint64_t i = 0; i < grants.count; i++)
        if (grants.list[i].device == device && grants.list[i].home == home)
            return true;
    return false;
}

size_t peers_access(CUdevice home, CUmemAccessDesc access[MAX_DEVICES]) {
    size_t count = 1;
    access[0] = access_of(home, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (CUdevice device = 0; device < shim.device_count; device++)
        if (device != home && has_access(device, home))
            access[count++] = access_of(device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return count;
}

/* The program's own mappings (program_handle) have the access that the program sets. */
static CUresult update(CUdevice device, CUdevice home) {
    CUmemAccessDesc access = access_of(device, has_access(device, home) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0);
    CUresult result = CUDA_SUCCESS;
    for (struct block *block = swap_blocks; block && device != home && result == CUDA_SUCCESS; block = block->next)
        if (!block->program_handle && block->properties.location.id == home && block->mappings)
            result = mapping_access(block->mappings, &access, 1);
    return result;
}

static uint64_t find(const struct grant *wanted) {
    uint64_t at = 0;
    while (at < grants.count && (grants.list[at].from != wanted->from || grants.list[at].to != wanted->to ||
                                 grants.list[at].device != wanted->device))
        at++;
    return at;
}

static void withdraw(uint64_t at) {
    struct grant gone = grants.list[at];
    grants.list[at] = grants.list[--grants.count];
    if (!has_access(gone.device, gone.home))
        update(gone.device, gone.home);
}

static CUresult add(const struct grant *grant) {
    if (find(grant) < grants.count)
        return CUDA_SUCCESS;
    if (grants.count == grants.room) {
        uint64_t room = grants.room ? 2 * grants.room : 16;
        struct grant *grown = realloc(grants.list, room * sizeof *grown);
        if (!grown)
            return CUDA_ERROR_OUT_OF_MEMORY;
        grants.list = grown;
        grants.room = room;
    }
    grants.list[grants.count++] = *grant;
    CUresult result = update(grant->device, grant->home);
    if (result != CUDA_SUCCESS)
        withdraw(find(grant));
    return result;
}

CUresult swap_grant(const void *from, const void *to, CUdevice device, CUdevice home) {
    RELAXED_MODE;
    pthread_mutex_lock(&residency_lock);
    CUresult result = add(&(struct grant){from, to, device, home});
    pthread_mutex_unlock(&residency_lock);
    return result;
}

void swap_withdraw(const void *from, const void *to, CUdevice device) {
    RELAXED_MODE;
    pthread_mutex_lock(&residency_lock);
    uint64_t at = find(&(struct grant){.from = from, .to = to, .device = device});
    if (at < grants.count)
        withdraw(at);
    pthread_mutex_unlock(&residency_lock);
}

/* Memory of the pool that is still in use keeps the access that it has. */
void swap_drop_pool(CUmemoryPool pool) {
    pthread_mutex_lock(&residency_lock);
    for (uint64_t i = grants.count; i-- > 0;)
        if (grants.list[i].to == (const void *)pool)
            grants.list[i] = grants.list[--grants.count];
    pthread_mutex_unlock(&residency_lock);
}

void peers_drop_context(CUcontext context) {
    for (uint64_t i = grants.count; i-- > 0;)
        if (grants.list[i].from == context || grants.list[i].to == context)
            withdraw(i);
}

void peers_after_fork(void) {
    grants.list = NULL; /* left to the parent's heap image */
    grants.count = grants.room = 0;
}
