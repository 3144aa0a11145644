/* Streams: opening and closing, the stream of a handle, and the default stream of each thread. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

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

static void end_thread(void *argument) {
    struct sim_thread_more *more = argument;
    for (size_t i = 0; i < SIM_OWN; i++)
        if (more->own[i].stream && more->own[i].stream->magic == MAGIC_STREAM && atomic_load(&sim.state) == SIM_READY)
            stream_close(more->own[i].stream, 0);
    context_leave_all();
    sim_thread.more = NULL;
    free(more);
}

static void make_thread_key(void) {
    pthread_key_create(&thread_key, end_thread);
}

struct sim_thread_more *thread_more(void) {
    if (!sim_thread.more && (sim_thread.more = calloc(1, sizeof *sim_thread.more))) {
        pthread_once(&thread_once, make_thread_key);
        pthread_setspecific(thread_key, sim_thread.more);
    }
    return sim_thread.more;
}

/* The calling thread's own default stream. */
struct sim_stream *stream_own(struct sim_context *context) {
    struct sim_thread_more *more = thread_more();
    if (!more)
        return NULL;
    for (size_t i = 0; i < SIM_OWN; i++)
        if (more->own[i].stream && more->own[i].context_id == context->id)
            return more->own[i].stream;
    struct sim_stream *stream;
    if (stream_open(context, 0, 0, &stream))
        return NULL;
    stream->handle = CU_STREAM_PER_THREAD;
    size_t place = 0;
    while (place + 1 < SIM_OWN && more->own[place].stream && more->own[place].stream->magic == MAGIC_STREAM)
        place++;
    more->own[place].context_id = context->id;
    more->own[place].stream = stream;
    return stream;
}

static int is_default(CUstream handle) {
    return handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
}

/* A default stream is that of the current context. A stream that the program has made needs no current context
 * (NVIDIA/cccl, libcudacxx/include/cuda/__stream/stream_ref.h: is_done and event_ref::record set none). */
CUresult stream_resolve(CUstream handle, CUstream fallback, struct sim_stream **out) {
    struct sim_context *context;
    if (!handle)
        handle = fallback;
    CUresult result = is_default(handle) ? context_current(&context) : sim_ready();
    if (__builtin_expect(result, 0))
        return result;
    if (handle == CU_STREAM_LEGACY) {
        *out = context->legacy;
        return CUDA_SUCCESS;
    }
    if (handle == CU_STREAM_PER_THREAD) {
        *out = stream_own(context);
        return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!sim_is_object(handle) || handle->magic != MAGIC_STREAM)
        return CUDA_ERROR_INVALID_HANDLE;
    *out = handle;
    if (__builtin_expect(!context_is_valid(handle->context), 0))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return atomic_load_explicit(&handle->context->error, memory_order_relaxed);
}
