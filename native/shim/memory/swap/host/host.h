/* Host memory for the contents of evicted blocks. */
#ifndef GPUSHARE_HOST_H
#define GPUSHARE_HOST_H

#include "driver/driver.h"

#pragma GCC visibility push(hidden)

/* The contents of an evicted block. */
struct host_buffer {
    void *address;
    uint64_t bytes;
    CUcontext pinned; /* the context in which it was pinned; NULL: ordinary memory */
    uint64_t kept_since;
    struct host_buffer *next;
};

/* --- host_buffer.c: all under residency_lock --- */

struct host_buffer *host_buffer_alloc(uint64_t bytes, CUcontext context); /* current; NULL: there is no host memory */
void host_buffer_free(struct host_buffer *host);
void host_buffers_bound(uint64_t max_bytes); /* give kept buffers above it back */
#define COPY_SLOTS 4                         /* staging buffers */
uint64_t host_staging_bytes(void);           /* of a staging buffer, for the present limit of the host's memory */
struct host_buffer *
host_buffer_alloc_staging(uint64_t bytes); /* outside of the budget; ordinary memory if it cannot be pinned */
void host_buffer_discard_staging(struct host_buffer *stage);
void host_buffer_pin(struct host_buffer *stage, CUcontext context);
void host_buffers_drop_context(CUcontext context); /* pinned buffers that no block uses */
void host_buffer_unpinned(struct host_buffer *buffer);
uint64_t host_buffers_poll(uint64_t now); /* agent: give unused host memory back; returns the time of the next call */
void host_buffers_after_fork(void);

/* --- parallel_copy.c --- */

void parallel_copy(void *to, const void *from, uint64_t bytes); /* as memcpy, by several threads */
void parallel_copy_after_fork(void);

#pragma GCC visibility pop

#endif
