/* The queues of the streams, and waiting for what they hold. */
#ifndef SIMCUDA_ENGINE_H
#define SIMCUDA_ENGINE_H

#include "base/sim.h"

/* engine.c */
CUresult engine_begin(struct sim_stream *stream,
                      struct sim_command **out);                /* a place in the queue or the graph; locks */
CUresult engine_commit(struct sim_stream *stream);              /* submits what was put there; unlocks */
void engine_wait(struct sim_stream *stream, uint64_t position); /* waits until `position` commands are complete */
CUresult engine_synchronize(struct sim_stream *stream);
int engine_is_idle(struct sim_stream *stream);

/* synchronize.c */
CUresult context_synchronize(struct sim_context *context);
struct sim_points *context_points(struct sim_context *context); /* all that was submitted; NULL: nothing */
void points_await(void *points);                                /* and free them */

#endif
