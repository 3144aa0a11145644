/* Streams: opening and closing. */
#include <stdlib.h>
#include <string.h>

#include "base/sim.h"
#include "base/waiting.h"
#include "context/context.h"

CUresult stream_open(struct sim_context *context, unsigned flags, int priority, struct sim_stream **out) {
    struct sim_stream *stream = object_get(MAGIC_STREAM, sizeof *stream);
    if (!stream)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(stream, 0, offsetof(struct sim_stream, tail));
    atomic_store(&stream->wake_at, UINT64_MAX);
    pthread_mutex_init(&stream->lock, NULL);
    atomic_store(&stream->holders, 2);
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority;
    stream->is_blocking = !(flags & CU_STREAM_NON_BLOCKING);
    stream->id = atomic_fetch_add(&sim.next_id, 1) + 1;
    stream->handle = stream;
    stream->magic = MAGIC_STREAM;
    pthread_mutex_lock(&context->lock);
    stream->next = context->streams;
    context->streams = stream;
    pthread_mutex_unlock(&context->lock);
    *out = stream;
    return CUDA_SUCCESS;
}

static void retire(struct sim_stream *stream) {
    struct sim_context *context = stream->context;
    pthread_mutex_lock(&context->lock);
    for (struct sim_stream **link = &context->streams; *link; link = &(*link)->next)
        if (*link == stream) {
            *link = stream->next;
            break;
        }
    pthread_mutex_unlock(&context->lock);
    free(stream->ring);
    stream->ring = NULL;
    pthread_mutex_destroy(&stream->lock);
    object_put(stream, MAGIC_STREAM);
}

void stream_let_go(struct sim_stream *stream) {
    if (atomic_fetch_sub(&stream->holders, 1) == 1)
        retire(stream);
}

/* The worker, if there is one, finishes the queue and releases the stream by itself (engine.c), unless `join`. */
void stream_close(struct sim_stream *stream, int join) {
    pthread_mutex_lock(&stream->lock);
    stream->magic = 0;
    stream->closing = join ? CLOSING_JOINED : CLOSING_ALONE;
    int started = stream->started;
    pthread_t worker = stream->worker;
    pthread_mutex_unlock(&stream->lock);
    if (started) {
        atomic_store(&stream->sleeping, 0);
        futex_wake(&stream->sleeping);
        if (!join) {
            pthread_detach(worker);
            stream_let_go(stream);
            return;
        }
        pthread_join(worker, NULL);
    }
    retire(stream);
}
