/* Parameters of the simulated machine: compiled-in defaults, then the parameter file, then the environment. */
#ifndef SIMCUDA_PARAMS_H
#define SIMCUDA_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#define SIM_MAX_DEVICES 16 /* MIG slices included */
#define SIM_PATH 256
#define SIM_LAYOUT 9 /* of the shared file; part of its default name, so that versions use different files */

/* Calls of virtual memory management that take time. */
enum sim_vmm_call { VMM_CREATE, VMM_MAP, VMM_SET_ACCESS, VMM_UNMAP, VMM_RELEASE, SIM_VMM_CALLS };
/* Calls for pinned memory that take time. */
enum sim_pin_call { PIN_ALLOC, PIN_FREE, PIN_REGISTER, PIN_UNREGISTER, SIM_PIN_CALLS };

struct sim_device_params {
    char name[96];
    uint64_t memory;         /* bytes */
    uint64_t context_memory; /* bytes that each context takes */
    uint64_t module_memory;  /* bytes that a module takes in a context */
    double h2d, d2h;         /* bandwidth of the link: prefetch, eviction, copies of pinned memory; bytes per second */
    double pageable_h2d, pageable_d2h; /* of copies of other host memory */
    double fault;                      /* of migration by page faults */
    double populate;                   /* of populating pages by a prefetch */
    double touch;                   /* of populating pages by page faults, when they are touched for the first time */
    double bandwidth;               /* bandwidth of device memory, bytes per second */
    double flops;                   /* floating point operations per second */
    uint64_t launch_ns;             /* minimal device time of a launch */
    uint64_t vmm_ns[SIM_VMM_CALLS]; /* time of a call for at most 64 MiB */
    double pin[SIM_PIN_CALLS];      /* bytes per second; 0: the call takes no time */
    int multiprocessors;
    int compute_major, compute_minor;
    int concurrent_managed_access; /* 0: unified memory takes room on the device like ordinary memory */
    int multicast;                 /* 1: multicast objects exist */
    int keeps_unused;              /* 1: memory that a prefetch has moved to the host does not count as free */
    int parent;                    /* of a MIG slice: the index of its device; -1: no slice */
    int slices;                    /* of a device in MIG mode: the number of its slices, which come after it */
};

struct sim_params {
    int devices;
    int shared;                /* 1: every user of the machine shares the devices */
    int strict_exit;           /* 1: abort if another thread uses the driver while the process ends */
    double time_scale;         /* real time per modelled time */
    uint64_t slice_ns;         /* time slice between processes that have work */
    uint64_t slice_switch_ns;  /* time lost when a slice of one process follows that of another */
    uint64_t reservation_unit; /* bytes: a reserved range is rounded up to a multiple */
    uint64_t recharge_ns;      /* how often a long launch checks whether its pages were evicted */
    int runs_any;              /* 1: a launch of a function that is not built in takes kernel_ns and computes nothing */
    uint64_t kernel_ns;
    char machine[SIM_PATH]; /* file that holds the state shared by all processes */
    char log[SIM_PATH];     /* directory of the execution log; empty: none */
    struct sim_device_params device[SIM_MAX_DEVICES];
};

/* Fill *params. Return 0, or -1 with one line in `problem` (never NULL) if the file or a variable cannot be parsed. */
int sim_params_load(struct sim_params *params, char *problem, size_t problem_size);

/* Set the device's UUID: "SIM", then a hash, so that it is stable for one machine file, and for one user unless
 * every user shares the devices. */
void sim_params_uuid(const struct sim_params *params, int index, unsigned char uuid[16]);

#endif
