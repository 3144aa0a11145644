/* Device attributes, queries and settings of contexts, and the profiler. Numbers are those of the public
 * interface. */
#include "api/api.h"
#include "base/exports.h"
#include "context/context.h"

static const struct {
    int attribute, value;
} constants[] = {
    {1, 1024},                                     /* threads per block */
    {2, 1024},                                     /* block x, y, z */
    {3, 1024},        {4, 64},    {5, 2147483647}, /* grid x, y, z */
    {6, 65535},       {7, 65535}, {8, 49152},      /* shared memory per block */
    {9, 65536},                                    /* constant memory */
    {10, 32},                                      /* warp */
    {11, 2147483647},                              /* pitch */
    {12, 65536},                                   /* registers per block */
    {13, 1400000},                                 /* clock, kHz */
    {14, 512},                                     /* texture alignment */
    {15, 1},                                       /* copies overlap launches */
    {19, 1},                                       /* maps host memory */
    {31, 1},                                       /* concurrent launches */
    {36, 5000000},                                 /* memory clock, kHz */
    {37, 256},                                     /* memory bus, bits */
    {38, 4194304},                                 /* L2 */
    {39, 2048},                                    /* threads per multiprocessor */
    {40, 2},                                       /* copy engines */
    {41, 1},                                       /* unified addressing */
    {51, 32},                                      /* texture pitch alignment */
    {78, 1},                                       /* stream priorities */
    {79, 1},          {80, 1},    {81, 102400},    /* shared memory per multiprocessor */
    {82, 65536},                                   /* registers per multiprocessor */
    {83, 1},                                       /* managed memory */
    {87, 32},                                      /* single to double precision */
    {90, 1},                                       /* compute preemption: time slices */
    {91, 1},                                       /* host pointers of registered memory are device pointers */
    {92, 1},          {93, 1},    {94, 1},         /* stream memory operations */
    {95, 1},                                       /* cooperative launch */
    {97, 101376},                                  /* shared memory per block, opt in */
    {99, 1},                                       /* host registration */
    {102, 1},         {103, 1},                    /* virtual memory management, handles as descriptors */
    {106, 16},                                     /* blocks per multiprocessor */
    {110, 1},         {116, 1},                    /* GPUDirect RDMA, of mapped memory and of any */
    {115, 1},                                      /* memory pools */
    {125, 1},                                      /* events for other processes */
    {122, 1},         {123, 1},                    /* stream memory operations */
};

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    int index;
    SIM_ENTER();
    CUresult result = device_of(device, &index);
    if (result || !value || attribute < 1 || attribute > 200)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    const struct sim_device_params *params = &sim.params.device[index];
    *value = 0;
    if (attribute == 16)
        *value = params->multiprocessors;
    else if (attribute == 33)
        *value = device_place(whole_device(index)) + 1; /* PCI bus */
    else if (attribute == 75)
        *value = params->compute_major;
    else if (attribute == 76)
        *value = params->compute_minor;
    else if (attribute == 132)
        *value = params->multicast;
    else if (attribute == 89)
        *value = params->concurrent_managed_access;
    else
        for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
            if (constants[i].attribute == attribute)
                *value = constants[i].value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    CUresult result = cuDeviceGetAttribute(major, 75, device);
    return result ? result : cuDeviceGetAttribute(minor, 76, device);
}

static CUresult any_context(CUcontext context, struct sim_context **out) {
    SIM_ENTER();
    *out = context ? context : sim_thread.current;
    return context_is_valid(*out) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

#define OF_CONTEXT(context, action)                                                                                    \
    do {                                                                                                               \
        struct sim_context *found;                                                                                     \
        CUresult result = any_context(context, &found);                                                                \
        if (!result)                                                                                                   \
            action;                                                                                                    \
        return result;                                                                                                 \
    } while (0)

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    OF_CONTEXT(context, *device = ordinal_of(found->device));
}

CUresult cuCtxGetDevice(CUdevice *device) {
    return cuCtxGetDevice_v2(device, NULL);
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    OF_CONTEXT(context, *version = 3020);
}

CUresult cuCtxGetFlags(unsigned *flags) {
    OF_CONTEXT(NULL, *flags = found->flags);
}

CUresult cuCtxSetFlags(unsigned flags) {
    OF_CONTEXT(NULL, found->flags = flags);
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    OF_CONTEXT(context, *id = found->id);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    struct sim_context *context;
    CUresult result = any_context(NULL, &context);
    if (!result && least)
        *least = 0;
    if (!result && greatest)
        *greatest = -5;
    return result;
}

CUresult cuCtxGetLimit(size_t *value, int limit) {
    static const size_t values[] = {1024, 1048576, 8388608, 2, 2048};
    struct sim_context *context;
    CUresult result = any_context(NULL, &context);
    if (result)
        return result;
    if (limit < 0 || limit >= (int)(sizeof values / sizeof *values))
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = values[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(int limit, size_t value) {
    size_t ignored;
    (void)value;
    return cuCtxGetLimit(&ignored, limit);
}

CUresult cuCtxGetCacheConfig(int *config) {
    OF_CONTEXT(NULL, *config = 0);
}

CUresult cuCtxSetCacheConfig(int config) {
    struct sim_context *context;
    (void)config;
    return any_context(NULL, &context);
}

CUresult cuCtxGetSharedMemConfig(int *config) {
    return cuCtxGetCacheConfig(config);
}
CUresult cuCtxSetSharedMemConfig(int config) {
    return cuCtxSetCacheConfig(config);
}
CUresult cuProfilerStart(void) {
    return sim_ready();
}
CUresult cuProfilerStop(void) {
    return sim_ready();
}
