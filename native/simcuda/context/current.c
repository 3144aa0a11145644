/* The calling thread's current context, and whether a context may be used. */
#include "base/sim.h"
#include "context/context.h"

int context_is_valid(const struct sim_context *context) {
    return sim_is_object(context) && context->magic == MAGIC_CONTEXT;
}

CUresult context_current(struct sim_context **out) {
    CUresult ready = sim_ready();
    if (ready)
        return ready;
    struct sim_context *context = sim_thread.current;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (__builtin_expect(!context_is_valid(context), 0))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *out = context;
    return atomic_load_explicit(&context->error, memory_order_relaxed);
}

void context_fail(struct sim_context *context, CUresult error) {
    int expected = 0;
    atomic_compare_exchange_strong(&context->error, &expected, error);
}
