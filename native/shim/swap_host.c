/* Host memory for what is off the device, and copies to it and from it.
 *
 * As much as GPUSHARE_PINNED allows is pinned, and kept for the next time: copies go straight to it, as fast as the link is.
 * The rest is ordinary memory, which copies reach by way of two pinned buffers in turn. */
#include "swap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STAGE (8ull << 20)

static struct {
    struct host *kept; /* pinned, of no block at present */
    uint64_t pinned, pageable;
    void *stage[2];
    CUevent passed[2];
    CUcontext context; /* of these events */
} host;

static void publish(void) {
    PUT(the_page()->report.host_pinned, host.pinned);
    PUT(the_page()->report.host_pageable, host.pageable);
}

static struct host *take_kept(uint64_t bytes) {
    for (struct host **link = &host.kept; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes) {
            struct host *found = *link;
            *link = found->next;
            return found;
        }
    return NULL;
}

static void unpin(struct host *gone) {
    REAL(cuMemFreeHost)(gone->at);
    host.pinned -= gone->bytes;
    free(gone);
}

/* Room in the budget, by giving up what is kept and does not fit this time. */
static bool make_room(uint64_t bytes) {
    uint64_t budget = shim.environment.pinned;
    while (host.pinned + bytes > budget && bytes <= budget && host.kept) {
        struct host *gone = host.kept;
        host.kept = gone->next;
        unpin(gone);
    }
    return host.pinned + bytes <= budget;
}

struct host *host_get(uint64_t bytes) {
    struct host *made = take_kept(bytes);
    if (made)
        return made;
    if (!(made = calloc(1, sizeof *made)))
        return NULL;
    made->bytes = bytes;
    if (make_room(bytes) && REAL(cuMemHostAlloc)(&made->at, bytes, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS) {
        made->pinned = true;
        host.pinned += bytes;
    } else {
        made->at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made->at == MAP_FAILED) {
            free(made);
            return NULL;
        }
        host.pageable += bytes;
    }
    publish();
    return made;
}

void host_put(struct host *gone) {
    if (gone->pinned) {
        gone->next = host.kept;
        host.kept = gone;
    } else {
        munmap(gone->at, gone->bytes);
        host.pageable -= gone->bytes;
        free(gone);
    }
    publish();
}

/* The context is current. */
static bool stages(CUcontext context) {
    for (int i = 0; i < 2; i++) {
        if (!host.stage[i] && REAL(cuMemHostAlloc)(&host.stage[i], STAGE, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS)
            return false;
        if (host.context != context && REAL(cuEventCreate)(&host.passed[i], CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS)
            return false;
    }
    host.context = context; /* the events of an earlier one are few, and go with it */
    return true;
}

static uint64_t part_at(uint64_t bytes, uint64_t at) {
    return bytes - at < STAGE ? bytes - at : STAGE;
}

/* While one buffer is filled by the device, the other is emptied here. */
static bool fetch_staged(struct lane *lane, char *to, CUdeviceptr address, uint64_t bytes) {
    uint64_t asked = 0, count = (bytes + STAGE - 1) / STAGE;
    for (uint64_t got = 0; got < count; got++) {
        for (; asked < count && asked < got + 2; asked++) {
            uint64_t at = asked * STAGE;
            if (REAL(cuMemcpyDtoHAsync_v2)(host.stage[asked % 2], address + at, part_at(bytes, at), lane->stream) !=
                    CUDA_SUCCESS ||
                REAL(cuEventRecord)(host.passed[asked % 2], lane->stream) != CUDA_SUCCESS)
                return false;
        }
        if (REAL(cuEventSynchronize)(host.passed[got % 2]) != CUDA_SUCCESS)
            return false;
        memcpy(to + got * STAGE, host.stage[got % 2], part_at(bytes, got * STAGE));
    }
    return true;
}

static bool bring_staged(struct lane *lane, CUdeviceptr address, const char *from, uint64_t bytes) {
    uint64_t count = (bytes + STAGE - 1) / STAGE;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = i * STAGE;
        if (i >= 2 && REAL(cuEventSynchronize)(host.passed[i % 2]) != CUDA_SUCCESS)
            return false;
        memcpy(host.stage[i % 2], from + at, part_at(bytes, at));
        if (REAL(cuMemcpyHtoDAsync_v2)(address + at, host.stage[i % 2], part_at(bytes, at), lane->stream) !=
                CUDA_SUCCESS ||
            REAL(cuEventRecord)(host.passed[i % 2], lane->stream) != CUDA_SUCCESS)
            return false;
    }
    for (uint64_t i = count > 2 ? count - 2 : 0; i < count; i++) /* the buffers are the next block's */
        if (REAL(cuEventSynchronize)(host.passed[i % 2]) != CUDA_SUCCESS)
            return false;
    return true;
}

bool host_fetch(struct lane *lane, struct host *to, CUdeviceptr address) {
    if (!to->pinned)
        return stages(lane->context) && fetch_staged(lane, to->at, address, to->bytes);
    lane->busy = true;
    return REAL(cuMemcpyDtoHAsync_v2)(to->at, address, to->bytes, lane->stream) == CUDA_SUCCESS;
}

bool host_bring(struct lane *lane, CUdeviceptr address, const struct host *from) {
    if (!from->pinned)
        return stages(lane->context) && bring_staged(lane, address, from->at, from->bytes);
    lane->busy = true;
    return REAL(cuMemcpyHtoDAsync_v2)(address, from->at, from->bytes, lane->stream) == CUDA_SUCCESS;
}

void host_forget(CUcontext context) {
    if (host.context == context)
        host.context = NULL;
}

void host_after_fork(void) {
    memset(&host, 0, sizeof host); /* mappings of pinned memory are not the child's */
}
