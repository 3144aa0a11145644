/* Waiting for all that a context and its green contexts have submitted. */
#include <stdlib.h>

#include "base/sim.h"
#include "work/engine.h"

/* Ends of all that the context and its green contexts have submitted. */
struct sim_points {
    size_t count;
    struct {
        struct sim_stream *stream;
        uint64_t position;
    } point[];
};

static struct sim_points *add_points(struct sim_points *points, struct sim_context *context) {
    pthread_mutex_lock(&context->lock);
    for (struct sim_stream *stream = context->streams; stream; stream = stream->next) {
        size_t count = points ? points->count : 0;
        struct sim_points *grown = realloc(points, sizeof *points + (count + 1) * sizeof *points->point);
        if (!grown)
            break;
        points = grown;
        points->count = count + 1;
        points->point[count].stream = stream;
        points->point[count].position = atomic_load(&stream->tail);
    }
    for (struct sim_context *green = context->greens; green; green = green->next)
        points = add_points(points, green);
    pthread_mutex_unlock(&context->lock);
    return points;
}

struct sim_points *context_points(struct sim_context *context) {
    return add_points(NULL, context);
}

void points_await(void *data) {
    struct sim_points *points = data;
    for (size_t i = 0; points && i < points->count; i++)
        engine_wait(points->point[i].stream, points->point[i].position);
    free(points);
}

CUresult context_synchronize(struct sim_context *context) {
    points_await(context_points(context));
    return atomic_load(&context->error);
}
