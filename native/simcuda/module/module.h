/* Modules and libraries of a context. */
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include "base/sim.h"

/* module.c; sim.lock is held */
CUresult module_charge_context(struct sim_context *context); /* the libraries of the process */
void module_unload_context(struct sim_context *context);

#endif
