/* Host memory for evicted blocks. As much as GPUSHARE_PINNED allows is pinned. Pinned buffers are kept for the next
 * eviction. Ordinary buffers are kept for a minute, if no cgroup limits the host memory, because new pages are slow.
 *
 * A buffer is the process's own memory, registered with the driver for pinning. If the context ends in which the buffer
 * was registered, copies become slower, but the contents are not lost.
 *
 * The agent gives ordinary memory back to the host, in parts, because a gigabyte can take a tenth of a second, and calls
 * of the program wait for the lock. */
#include "memory/swap/host/host.h"
#include "memory/transfers/transfers.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define KEPT_NS (60000 * NS_PER_MS)
#define PART_BYTES (256ull << 20)    /* given back under one hold of the lock */
#define MIN_STAGE_BYTES (1ull << 20) /* smaller copies cost more time than they take on the link */
#define MAX_STAGE_BYTES (8ull << 20)
#define STAGING_FRACTION 32 /* all staging buffers take at most this part of the memory that may be off the device */
#define RETRY_NS (10 * NS_PER_MS) /* while another thread holds the lock */

static struct {
    struct host_buffer *kept;          /* pinned buffers that no block uses at present */
    struct host_buffer *kept_pageable; /* ordinary ones, the latest first */
    struct host_buffer *leaving;       /* ordinary ones that the agent gives back */
    uint64_t pinned, pageable;         /* bytes, with those of kept and of leaving buffers */
    uint64_t leaving_bytes;
} host;

static void publish(void) {
    PAGE_STORE(the_page()->report.host_pinned, host.pinned);
    PAGE_STORE(the_page()->report.host_pageable, host.pageable);
}

static struct host_buffer *take_kept(struct host_buffer **link, uint64_t bytes) {
    for (; *link; link = &(*link)->next)
        if ((*link)->bytes == bytes) {
            struct host_buffer *found = *link;
            *link = found->next;
            return found;
        }
    return NULL;
}

/* A child of the program never uses it: pages that the device writes to must not become the child's. */
static struct host_buffer *make(uint64_t bytes) {
    struct host_buffer *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->bytes = bytes;
    made->address = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made->address == MAP_FAILED) {
        free(made);
        return NULL;
    }
    madvise(made->address, bytes, MADV_DONTFORK);
    madvise(made->address, bytes, MADV_HUGEPAGE); /* for fewer page faults while it is filled */
    return made;
}

static void discard(struct host_buffer *gone) {
    if (gone->pinned)
        REAL(cuMemHostUnregister)(gone->address);
    munmap(gone->address, gone->bytes);
    free(gone);
}

void host_buffer_pin(struct host_buffer *stage, CUcontext context) {
    if (!stage->pinned &&
        REAL(cuMemHostRegister_v2)(stage->address, stage->bytes, CU_MEMHOSTREGISTER_PORTABLE) == CUDA_SUCCESS)
        stage->pinned = context;
}

/* Make room in the budget by discarding kept buffers that do not fit this time. */
static bool make_room(uint64_t bytes) {
    uint64_t budget = shim.environment.pinned;
    while (host.pinned + bytes > budget && bytes <= budget && host.kept) {
        struct host_buffer *gone = host.kept;
        host.kept = gone->next;
        host.pinned -= gone->bytes;
        discard(gone);
    }
    return host.pinned + bytes <= budget;
}

static void leave(struct host_buffer *buffer) {
    if (!host.leaving)
        agent_wake();
    buffer->next = host.leaving;
    host.leaving = buffer;
    host.leaving_bytes += buffer->bytes;
}

/* Let ordinary buffers leave that have been kept since before `began`, at most `max_bytes` of them and one more. */
static void retire_kept(uint64_t began, uint64_t max_bytes) {
    uint64_t bytes = 0;
    for (struct host_buffer **link = &host.kept_pageable; *link && bytes < max_bytes;) {
        struct host_buffer *old = *link;
        if (old->kept_since >= began) {
            link = &old->next;
            continue;
        }
        *link = old->next;
        bytes += old->bytes;
        leave(old);
    }
}

static void give_back(uint64_t max_bytes) {
    for (uint64_t left = max_bytes; left && host.leaving;) {
        struct host_buffer *buffer = host.leaving;
        uint64_t bytes = min_u64(buffer->bytes, left);
        left -= bytes;
        buffer->bytes -= bytes;
        host.leaving_bytes -= bytes;
        host.pageable -= bytes;
        munmap((char *)buffer->address + buffer->bytes, bytes);
        if (!buffer->bytes) {
            host.leaving = buffer->next;
            free(buffer);
        }
    }
    publish();
}

uint64_t host_buffers_poll(uint64_t now) {
    if (pthread_mutex_trylock(&residency_lock))
        return now + RETRY_NS;
    retire_kept(now - min_u64(now, KEPT_NS), UINT64_MAX);
    if (host.leaving)
        give_back(PART_BYTES);
    uint64_t next = host.leaving ? now : NEVER;
    pthread_mutex_unlock(&residency_lock);
    return next;
}

void host_buffers_bound(uint64_t max_bytes) {
    uint64_t stays = host.pageable - host.leaving_bytes;
    if (stays > max_bytes)
        retire_kept(UINT64_MAX, stays - max_bytes);
}

static struct host_buffer *take_leaving(uint64_t bytes) {
    struct host_buffer *found = take_kept(&host.leaving, bytes);
    host.leaving_bytes -= found ? bytes : 0;
    return found;
}

struct host_buffer *host_buffer_alloc(uint64_t bytes, CUcontext context) {
    struct host_buffer *made = take_kept(&host.kept, bytes);
    bool may_pin = !made && make_room(bytes);
    if (!made && !may_pin)
        made = take_kept(&host.kept_pageable, bytes);
    if (!made && !may_pin)
        made = take_leaving(bytes);
    if (made)
        return made;
    retire_kept(UINT64_MAX, bytes); /* of other sizes, so that the sum does not grow */
    give_back(bytes);
    if (!(made = make(bytes)))
        return NULL;
    if (may_pin) {
        host_buffer_pin(made, context);
        if (!made->pinned)
            log_once(LOG_INFO, "copy through the driver's own buffers, because it pins no memory of the shim");
    }
    *(made->pinned ? &host.pinned : &host.pageable) += bytes;
    publish();
    return made;
}

void host_buffer_free(struct host_buffer *gone) {
    bool is_limited = PAGE_LOAD(the_page()->control.evicted_limit) != UINT64_MAX;
    if (gone->pinned) {
        gone->next = host.kept;
        host.kept = gone;
    } else if (!is_limited) {
        gone->kept_since = now_ns();
        gone->next = host.kept_pageable;
        host.kept_pageable = gone;
    } else {
        leave(gone);
    }
    publish();
}

/* Staging buffers count in the cgroup of the process, as evicted memory does. The size is a power of two, so that small
 * changes of the limit have no effect. */
uint64_t host_staging_bytes(void) {
    uint64_t limit = PAGE_LOAD(the_page()->control.evicted_limit), bytes = MAX_STAGE_BYTES;
    while (bytes > MIN_STAGE_BYTES && bytes * COPY_SLOTS > limit / STAGING_FRACTION)
        bytes /= 2;
    return bytes;
}

struct host_buffer *host_buffer_alloc_staging(uint64_t bytes) {
    return make(bytes);
}

void host_buffer_discard_staging(struct host_buffer *stage) {
    discard(stage);
}

/* Buffers that the context had pinned are pinned no more. */
void host_buffers_drop_context(CUcontext context) {
    for (struct host_buffer **link = &host.kept; *link;) {
        struct host_buffer *kept = *link;
        if (kept->pinned != context) {
            link = &kept->next;
            continue;
        }
        *link = kept->next;
        host_buffer_unpinned(kept);
        leave(kept);
    }
}

/* The context in which the buffer was pinned has ended. */
void host_buffer_unpinned(struct host_buffer *buffer) {
    buffer->pinned = NULL;
    host.pinned -= buffer->bytes;
    host.pageable += buffer->bytes;
    publish();
}

void host_buffers_after_fork(void) {
    memset(&host, 0, sizeof host); /* the child has no access to the memory */
}
