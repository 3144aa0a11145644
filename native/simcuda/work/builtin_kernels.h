/* The functions that can be simulated, and the state of one execution. */
#ifndef SIMCUDA_BUILTINS_H
#define SIMCUDA_BUILTINS_H

#include "memory/alloc.h"

#define SIM_MAX_TOUCHES 4

/* One launch that is being executed. */
struct sim_execution {
    const uint64_t *params;
    struct sim_context *context;
    const struct sim_device_params *device;
    struct {
        struct sim_alloc *alloc;
        uint64_t offset, bytes;
    } touch[SIM_MAX_TOUCHES]; /* memory that it uses, pinned */
    int touches;
    uint64_t cost_ns;  /* modelled time, launch overhead not included */
    int is_busy;       /* the program requested that time, so the launch must not end early */
    uint64_t begin_ns; /* CLOCK_REALTIME, as the device's timer shows it */
};

struct sim_builtin {
    const char *name;
    int param_count;
    uint8_t param_size[SIM_MAX_PARAMS];
    /* checks addresses; sets the memory that is used and the cost */
    CUresult (*prepare)(struct sim_execution *execution);
    void (*run)(struct sim_execution *execution);    /* the work on the data */
    void (*finish)(struct sim_execution *execution); /* after the modelled time; may be NULL */
};

const struct sim_builtin *builtin_find(const char *name);
/* Return what any other function does: take GPUSHARE_SIM_KERNEL_NS and compute nothing, or NULL without that variable. */
const struct sim_builtin *builtin_uncomputed(void);
uint64_t sim_real_time(void);

#endif
