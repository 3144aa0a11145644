/* Allocation and release of memory: its mapping, its charge to the machine, and the pins that hold an allocation in
 * place. */
#define _GNU_SOURCE
#include "base/waiting.h"
#include "machine/machine.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "memory/vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define SPARE_REGIONS 256

struct sim_alloc *alloc_pin(uint64_t address) {
    alloc_lock();
    struct sim_alloc *alloc = alloc_find(address);
    if (alloc)
        atomic_fetch_add(&alloc->pins, 1);
    alloc_unlock();
    return alloc;
}

void alloc_unpin(struct sim_alloc *alloc) {
    if (alloc)
        atomic_fetch_sub(&alloc->pins, 1);
}

struct sim_alloc *alloc_pin_range(uint64_t address, uint64_t bytes) {
    alloc_lock();
    struct sim_alloc *alloc = alloc_find(address);
    if (alloc && (bytes > alloc->base + alloc->size - address ||
                  (alloc->kind == ALLOC_RESERVED && !vmm_is_accessible(alloc, address, bytes, ANY_DEVICE))))
        alloc = NULL;
    if (alloc)
        atomic_fetch_add(&alloc->pins, 1);
    alloc_unlock();
    return alloc;
}

struct sim_context *alloc_context(uint64_t address, unsigned kinds) {
    struct sim_alloc *alloc = alloc_pin(address);
    struct sim_context *context = alloc && alloc->base == address && (kinds >> alloc->kind & 1) ? alloc->context : NULL;
    alloc_unpin(alloc);
    return context;
}

/* Charge roughly as the real driver does: large allocations in steps of its page size. */
static uint64_t round_size(enum sim_alloc_kind kind, uint64_t bytes) {
    uint64_t step = kind == ALLOC_MANAGED ? 65536 : bytes >= 1048576 ? MACHINE_BLOCK : 512;
    return (bytes + step - 1) / step * step;
}

/* Small unified memory that was released, because a driver does not ask the system anew each time. */
static struct {
    pthread_mutex_t lock;
    void *region[SPARE_REGIONS];
    int count;
} spare = {.lock = PTHREAD_MUTEX_INITIALIZER};

static int is_smallest(const struct sim_alloc *alloc) {
    return alloc->kind == ALLOC_MANAGED && alloc->mapped == MAPPED_FROM;
}

static void *take_spare(void) {
    pthread_mutex_lock(&spare.lock);
    void *region = spare.count ? spare.region[--spare.count] : NULL;
    pthread_mutex_unlock(&spare.lock);
    return region;
}

static int keep_spare(void *region) {
    pthread_mutex_lock(&spare.lock);
    int room = spare.count < SPARE_REGIONS;
    if (room)
        spare.region[spare.count++] = region;
    pthread_mutex_unlock(&spare.lock);
    return room;
}

static void *map(struct sim_alloc *alloc) {
    if (alloc->kind != ALLOC_MANAGED && alloc->mapped < MAPPED_FROM)
        return aligned_alloc(512, (alloc->mapped + 511) / 512 * 512);
    void *again = is_smallest(alloc) ? take_spare() : NULL;
    if (again)
        return again;
    void *memory =
        mmap(NULL, alloc->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void unmap(struct sim_alloc *alloc) {
    if (alloc->kind == ALLOC_REGISTERED)
        return;
    if ((alloc->kind == ALLOC_PLAIN || alloc->kind == ALLOC_HOST) && alloc->mapped < MAPPED_FROM)
        free((void *)alloc->base);
    else if (!is_smallest(alloc) || !keep_spare((void *)alloc->base))
        munmap((void *)alloc->base, alloc->mapped);
}

static void uncharge(struct sim_alloc *alloc) {
    if (alloc->inode) {
        machine_shared_leave(sim.machine, alloc->device, sim.slot, alloc->inode);
        close(alloc->file);
    } else if (alloc->pool) {
        pool_give(alloc->pool, alloc->mapped);
    } else if (alloc_is_paged(alloc))
        machine_range_close(sim.machine, alloc->device, alloc->range);
    else if (alloc->kind == ALLOC_PLAIN || alloc->kind == ALLOC_MANAGED)
        machine_discharge(sim.machine, alloc->device, sim.slot, alloc->mapped);
}

/* Take the bytes of ordinary memory from the pool, or from the device. */
static int charge(struct sim_alloc *alloc, uint64_t *evicted) {
    if (alloc_is_paged(alloc) || (alloc->kind != ALLOC_PLAIN && alloc->kind != ALLOC_MANAGED))
        return 0;
    return alloc->pool ? pool_take(alloc->pool, alloc->mapped, evicted)
                       : machine_charge(sim.machine, alloc->device, sim.slot, alloc->mapped, evicted);
}

static CUresult allocate(struct sim_context *context, enum sim_alloc_kind kind, size_t bytes, unsigned flags,
                         struct sim_pool *pool, struct sim_alloc **out) {
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 1ull << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sim_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc->kind = kind;
    alloc->size = bytes;
    alloc->mapped = round_size(kind, bytes);
    alloc->context = context_of_memory(context);
    alloc->device = pool ? pool_device(pool) : context->device;
    alloc->flags = flags;
    alloc->pool = pool;
    alloc->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    pthread_mutex_init(&alloc->lock, NULL);
    uint64_t evicted = 0;
    if (charge(alloc, &evicted))
        goto no_room;
    if (alloc_is_paged(alloc)) {
        if ((alloc->range = machine_range_open(sim.machine, alloc->device, sim.slot)) < 0)
            goto no_room;
        residency_open(alloc);
    }
    if ((alloc_is_paged(alloc) && !alloc->place) || !(alloc->base = (uint64_t)map(alloc)))
        goto no_memory;
    if (alloc_insert(alloc)) {
        unmap(alloc);
        goto no_memory;
    }
    machine_spend_eviction(sim.machine, alloc->device, evicted);
    *out = alloc;
    return CUDA_SUCCESS;
no_memory:
    uncharge(alloc);
    free(alloc->place);
no_room:
    free(alloc);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult alloc_new(struct sim_context *context, enum sim_alloc_kind kind, size_t bytes, unsigned flags,
                   struct sim_alloc **out) {
    return allocate(context, kind, bytes, flags, NULL, out);
}

CUresult alloc_from_pool(struct sim_context *context, struct sim_pool *pool, size_t bytes, struct sim_alloc **out) {
    return allocate(context, ALLOC_PLAIN, bytes, 0, pool, out);
}

CUresult alloc_register(struct sim_context *context, void *host, size_t bytes, unsigned flags) {
    uint64_t base = (uint64_t)host;
    if (!host || !bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (alloc_overlaps(base, bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct sim_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc->kind = ALLOC_REGISTERED;
    alloc->base = base;
    alloc->size = alloc->mapped = bytes;
    alloc->context = context_of_memory(context);
    alloc->device = context->device;
    alloc->flags = flags;
    alloc->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    if (alloc_insert(alloc)) {
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

/* Find address space of that alignment: reserve more than is needed, and release what is too much at both ends. */
static uint64_t find_space(uint64_t bytes, uint64_t alignment) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    char *memory = mmap(NULL, bytes + alignment, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED)
        return 0;
    uint64_t begin = ((uint64_t)memory + alignment - 1) / alignment * alignment,
             end = (uint64_t)memory + bytes + alignment;
    if (begin > (uint64_t)memory)
        munmap(memory, begin - (uint64_t)memory);
    if (end > begin + bytes)
        munmap((void *)(begin + bytes), end - begin - bytes);
    return begin;
}

/* Unmapped addresses can be written to without harm, because work in flight must not end the program. */
CUresult alloc_reserve(uint64_t bytes, uint64_t alignment, uint64_t hint, CUdeviceptr *out) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    const uint64_t unit = sim.params.reservation_unit;
    struct sim_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    alloc->reserved = bytes;
    bytes = (bytes + unit - 1) / unit * unit;
    if (hint && hint % alignment == 0) {
        void *memory = mmap((void *)hint, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (memory == (void *)hint)
            alloc->base = hint;
        else if (memory != MAP_FAILED) /* a Linux without the flag */
            munmap(memory, bytes);
    }
    alloc->kind = ALLOC_RESERVED;
    alloc->size = alloc->mapped = bytes;
    alloc->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    pthread_mutex_init(&alloc->lock, NULL);
    if (!alloc->base && !(alloc->base = find_space(bytes, alignment))) {
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (alloc_insert(alloc)) {
        unmap(alloc);
        free(alloc);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *out = alloc->base;
    return CUDA_SUCCESS;
}

static void give_back(struct sim_alloc *alloc) {
    while (atomic_load(&alloc->pins))
        sim_sleep_until(sim_now() + 20000);
    uncharge(alloc);
    unmap(alloc);
    pthread_mutex_destroy(&alloc->lock);
    free(alloc->place);
    free(alloc->mapping);
    free(alloc);
}

CUresult alloc_free(uint64_t address, unsigned kinds) {
    struct sim_alloc *alloc = alloc_take(address, kinds);
    if (!alloc)
        return CUDA_ERROR_INVALID_VALUE;
    give_back(alloc);
    return CUDA_SUCCESS;
}

void alloc_free_context(struct sim_context *context) {
    struct sim_alloc *alloc;
    while ((alloc = alloc_take_of_context(context)))
        give_back(alloc);
}
