/* Check that a locked process has completed its submitted work. */
#include "checkpoint/checkpoint.h"

/* A submission that began before the process was locked holds the lock of its stream, and ends before this check. */
static int stream_is_quiet(struct sim_stream *stream) {
    pthread_mutex_lock(&stream->lock);
    int quiet = atomic_load(&stream->head) == atomic_load(&stream->tail) &&
                (!stream->started || atomic_load(&stream->sleeping));
    pthread_mutex_unlock(&stream->lock);
    return quiet;
}

static int context_is_quiet(struct sim_context *context) {
    int quiet = 1;
    pthread_mutex_lock(&context->lock);
    for (struct sim_stream *stream = context->streams; stream && quiet; stream = stream->next)
        quiet = stream_is_quiet(stream);
    for (struct sim_context *green = context->greens; green && quiet; green = green->next)
        quiet = context_is_quiet(green);
    pthread_mutex_unlock(&context->lock);
    return quiet;
}

int work_is_quiet(void) {
    int quiet = 1;
    pthread_mutex_lock(&sim.lock);
    for (struct sim_context *context = sim.contexts; context && quiet; context = context->next)
        quiet = context_is_quiet(context);
    pthread_mutex_unlock(&sim.lock);
    return quiet;
}
