/* Contexts, which the functions for green contexts make too, and the devices that the program sees. */
#ifndef SIMCUDA_API_API_H
#define SIMCUDA_API_API_H

#include "base/sim.h"

/* context.c */
CUresult context_retain(int device, struct sim_context **out); /* the device's primary context */
CUresult context_release(int device, int reset);
CUresult context_new(int device, unsigned flags, struct sim_context **out);

/* multiprocessors.c */
struct sim_resources {
    unsigned multiprocessors;
};
void resource_describe(CUdevResource *resource, int device, unsigned multiprocessors);

/* coredump.c */
void dump_settings_begin(struct sim_context *context); /* of a new context */

/* visible_devices.c */
void find_visible_devices(void); /* of CUDA_VISIBLE_DEVICES */
int whole_device(int index);     /* the device of a MIG slice; any other device itself */

#endif
