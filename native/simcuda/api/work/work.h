/* Commands that several functions of the program submit. */
#ifndef SIMCUDA_API_WORK_WORK_H
#define SIMCUDA_API_WORK_WORK_H

#include "base/sim.h"

/* api_event.c */
CUresult event_submit(struct sim_event *event, struct sim_stream *stream); /* records it outside of captures */

/* api_launch.c */
CUresult launch_command(CUfunction function, const unsigned grid[3], const unsigned block[3], unsigned shared,
                        void **params, void **extra, struct sim_command *command);

#endif
