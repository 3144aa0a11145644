/* Contexts, which the functions for green contexts make too. */
#ifndef SIMCUDA_API_API_H
#define SIMCUDA_API_API_H

#include "base/sim.h"

/* context.c */
CUresult context_retain(int device, struct sim_context **out); /* the device's primary context */
CUresult context_release(int device, int reset);
CUresult context_new(int device, unsigned flags, struct sim_context **out);

#endif
