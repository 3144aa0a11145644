/* Ordinary allocations that other processes open. An allocation becomes a file when it is first exported: its contents
 * are copied to the file, and the file is mapped in its place. No command works on the allocation meanwhile. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/waiting.h"
#include "machine/machine.h"
#include "memory/alloc.h"

#define PAGE 4096ull

static uint64_t pages(uint64_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

/* alloc_lock is held, and there are no pins. */
static CUresult become_file(struct sim_alloc *alloc) {
    struct stat st;
    uint64_t bytes = pages(alloc->mapped);
    int file = memfd_create("simulated device memory", MFD_CLOEXEC);
    if (file < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    void *copy = ftruncate(file, (off_t)bytes) || fstat(file, &st)
                     ? MAP_FAILED
                     : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (copy == MAP_FAILED ||
        machine_shared_open(sim.machine, alloc->device, sim.slot, (uint64_t)st.st_ino, alloc->mapped)) {
        if (copy != MAP_FAILED)
            munmap(copy, bytes);
        close(file);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(copy, (const void *)alloc->base, alloc->mapped);
    alloc->base = (uint64_t)mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)alloc->base);
    alloc->file = file;
    alloc->inode = (uint64_t)st.st_ino;
    return CUDA_SUCCESS;
}

CUresult alloc_share(uint64_t address, int *file, uint64_t *inode) {
    for (;;) {
        alloc_lock();
        struct sim_alloc *alloc = alloc_find(address);
        CUresult result = alloc && alloc->kind == ALLOC_PLAIN && !alloc->pool ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        if (!result && alloc->mapped < MAPPED_FROM)
            result = CUDA_ERROR_NOT_SUPPORTED; /* it lies in pages of the C library */
        int busy = !result && !alloc->inode && atomic_load(&alloc->pins);
        if (!result && !busy && (alloc->inode || !(result = become_file(alloc)))) {
            *file = alloc->file;
            *inode = alloc->inode;
        }
        alloc_unlock();
        if (!busy)
            return result;
        sim_sleep_until(sim_now() + 20000);
    }
}

static CUresult open_new(struct sim_context *context, int file, const struct stat *st, CUdeviceptr *out) {
    int device;
    uint64_t bytes;
    struct sim_alloc *alloc = calloc(1, sizeof *alloc);
    if (!alloc || machine_shared_join(sim.machine, sim.slot, (uint64_t)st->st_ino, &device, &bytes)) {
        free(alloc);
        return alloc ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY;
    }
    void *memory = mmap(NULL, pages(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    alloc->kind = ALLOC_IMPORTED;
    alloc->base = (uint64_t)memory;
    alloc->size = alloc->mapped = bytes;
    alloc->context = context;
    alloc->device = device;
    alloc->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    alloc->inode = (uint64_t)st->st_ino;
    alloc->opened = 1;
    pthread_mutex_init(&alloc->lock, NULL);
    alloc->file = memory == MAP_FAILED ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 0);
    if (alloc->file < 0 || alloc_insert(alloc)) {
        machine_shared_leave(sim.machine, device, sim.slot, alloc->inode);
        if (memory != MAP_FAILED)
            munmap(memory, pages(bytes));
        free(alloc);
        return CUDA_ERROR_MAP_FAILED;
    }
    *out = alloc->base;
    return CUDA_SUCCESS;
}

CUresult alloc_open(struct sim_context *context, int file, CUdeviceptr *out) {
    struct stat st;
    if (fstat(file, &st))
        return CUDA_ERROR_INVALID_VALUE;
    alloc_lock();
    struct sim_alloc *known = alloc_of_inode((uint64_t)st.st_ino);
    CUresult result = known && known->kind == ALLOC_PLAIN ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
    if (known && !result) {
        known->opened++;
        *out = known->base;
    }
    alloc_unlock();
    return known ? result : open_new(context, file, &st, out);
}

CUresult alloc_close(uint64_t address) {
    alloc_lock();
    struct sim_alloc *alloc = alloc_find(address);
    int known = alloc && alloc->kind == ALLOC_IMPORTED && alloc->base == address;
    int last = known && --alloc->opened == 0;
    alloc_unlock();
    return !known ? CUDA_ERROR_INVALID_VALUE : last ? alloc_free(address, 1u << ALLOC_IMPORTED) : CUDA_SUCCESS;
}
