/* Modules and libraries, and their code in contexts. */
#ifndef SIMCUDA_MODULE_H
#define SIMCUDA_MODULE_H

#include "base/sim.h"
#include "context/context.h"

/* module.c; sim.lock is held */
CUresult module_begin_context(struct sim_context *context); /* CUDA_ERROR_OUT_OF_MEMORY: nothing is loaded */
void module_end_context(struct sim_context *context);

/* module_code.c: code of a module in a context, which takes module_memory of the device */
int code_is_lazy(void);
/* Without effect if the module is loaded there. A module that is no library is loaded into its own context only.
 * CUDA_ERROR_OUT_OF_MEMORY: the device has no room. */
CUresult code_load(struct sim_module *module, struct sim_context *context);
CUresult code_load_here(struct sim_module *module); /* into the current context */
int code_is_loaded(const struct sim_module *module, struct sim_context *context);
void code_unload(struct sim_module *module); /* from every context */
void code_end_context(struct sim_module *module, const struct sim_context *context);

/* For the launch of a kernel of a library. CUDA_ERROR_UNKNOWN: such a launch has found no room before. */
CUresult code_load_library(struct sim_module *library, struct sim_context *context);

/* Load the code of a launch. The program got a function of a module that is no library by a call that loaded it. */
static inline CUresult code_load_for_launch(const struct sim_function *function, struct sim_context *context) {
    return function->module->context ? CUDA_SUCCESS : code_load_library(function->module, context);
}

#endif
