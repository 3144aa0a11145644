/* The state of a thread of the program: its stack of contexts, its default streams, and its end. Also the lookup of the
 * stream of a handle. */
#include <stdlib.h>

#include "base/sim.h"
#include "context/context.h"

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

void context_let_go(struct sim_context *context) {
    if (!context_is_valid(context) || !context->green)
        return;
    pthread_mutex_lock(&context->lock);
    context->holds--;
    pthread_mutex_unlock(&context->lock);
}

/* The calling thread ends. */
static void context_leave_all(void) {
    context_let_go(sim_thread.current);
    for (int i = 0; i < sim_thread.depth; i++)
        context_let_go(sim_thread.more->stack[i]);
    sim_thread.current = NULL;
    sim_thread.depth = 0;
}

static int is_alive(void) {
    uint32_t state = atomic_load(&sim.state);
    return state == SIM_READY || state == SIM_LOCKED;
}

static void end_thread(void *argument) {
    struct sim_thread_more *more = argument;
    for (size_t i = 0; i < SIM_OWN; i++)
        if (more->own[i].stream && more->own[i].stream->magic == MAGIC_STREAM && is_alive())
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

/* A green context can be current in one thread only (cuGreenCtxCreate, CUDA_ERROR_CONTEXT_ALREADY_IN_USE). */
CUresult context_hold(struct sim_context *context) {
    if (!context || !context->green)
        return CUDA_SUCCESS;
    if (!thread_more()) /* its end lets go of the context */
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&context->lock);
    int own = !context->holds || pthread_equal(context->holder, pthread_self());
    if (own) {
        context->holder = pthread_self();
        context->holds++;
    }
    pthread_mutex_unlock(&context->lock);
    return own ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_ALREADY_IN_USE;
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
