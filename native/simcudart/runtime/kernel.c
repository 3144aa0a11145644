/* The program's functions on the device. A launch occupies the device for a stated time and computes nothing: the
 * driver gets a module of PTX text for each function, in place of the function's machine code. */
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_LAUNCH_NS 20000 /* of GPUSHARE_SIM_KERNEL_NS: device time of a launch, beyond the driver's overhead */
#define SLEEP_NAME "11spin_kernelEl" /* mangled: spin_kernel(long) */

struct kernel {
    const char *name;
    CUkernel function; /* NULL: not loaded yet */
    CUkernel opaque;   /* the same without parameters, for launches by the program itself; NULL: not loaded yet */
    int is_sleep;      /* PyTorch's kernel of torch.cuda._sleep, whose parameter is a number of clock cycles */
};

/* Open addressing, by the address of the function on the host, or of the structure itself: both name a kernel. */
static struct {
    const void **key;
    struct kernel **kernel;
    size_t count, room; /* room: a power of two */
} table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the table and of loading */

static size_t place_of(const void *key) {
    size_t place = ((uintptr_t)key >> 3) * 0x9e3779b97f4a7c15ull & (table.room - 1);
    while (table.key[place] && table.key[place] != key)
        place = (place + 1) & (table.room - 1);
    return place;
}

static void put(const void *key, struct kernel *kernel) {
    if (2 * table.count >= table.room) {
        const void **keys = table.key;
        struct kernel **kernels = table.kernel;
        size_t room = table.room;
        table.room = room ? 2 * room : 4096;
        table.key = calloc(table.room, sizeof *table.key);
        table.kernel = calloc(table.room, sizeof *table.kernel);
        if (!table.key || !table.kernel)
            abort(); /* at the program's start, with no memory for a table of pointers */
        for (size_t i = 0; i < room; i++)
            if (keys[i]) {
                size_t place = place_of(keys[i]);
                table.key[place] = keys[i];
                table.kernel[place] = kernels[i];
            }
        free(keys);
        free(kernels);
    }
    size_t place = place_of(key);
    table.count += !table.key[place];
    table.key[place] = key;
    table.kernel[place] = kernel;
}

static struct kernel *kernel_new(const char *name) {
    struct kernel *kernel = calloc(1, sizeof *kernel);
    if (!kernel)
        return NULL;
    kernel->name = name;
    kernel->is_sleep = strstr(name, SLEEP_NAME) != NULL;
    put(kernel, kernel);
    return kernel;
}

static struct kernel *kernel_get(const void *key) {
    return table.room ? table.kernel[place_of(key)] : NULL;
}

static uint64_t launch_ns(void) {
    static uint64_t nanoseconds;
    static int is_known;
    if (!is_known) {
        const char *text = getenv("GPUSHARE_SIM_KERNEL_NS");
        nanoseconds = text && *text ? strtoull(text, NULL, 10) : DEFAULT_LAUNCH_NS;
        fprintf(stderr,
                "simcudart: this is a stand-in for the CUDA runtime. Kernels are not computed, so their results are"
                " undefined. A launch occupies the simulated device for %llu ns (GPUSHARE_SIM_KERNEL_NS).\n",
                (unsigned long long)nanoseconds);
        is_known = 1;
    }
    return nanoseconds;
}

/* `spin` is a built-in function of the simulated driver, which recognises it by name and parameters. */
static const char image[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                            ".visible .entry spin(.param .u64 nanoseconds) { ret; }\n";

static CUresult load(struct kernel *kernel) {
    CUlibrary library;
    launch_ns();
    CUresult result = driver.cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    return result ? result : driver.cuLibraryGetKernel(&kernel->function, library, "spin");
}

CUresult kernel_find(const void *host, CUkernel *out) {
    pthread_mutex_lock(&lock);
    struct kernel *kernel = kernel_get(host);
    CUresult result = !kernel            ? (CUresult)cudaErrorInvalidDeviceFunction
                      : kernel->function ? CUDA_SUCCESS
                                         : load(kernel);
    *out = kernel ? kernel->function : NULL;
    pthread_mutex_unlock(&lock);
    return result;
}

/* A program that launches the function by the driver passes the function's own parameters, which `spin` would take for
 * its time. The driver launches an unknown function only if GPUSHARE_SIM_KERNEL_NS names the time. */
static const char opaque_image[] = ".version 8.0\n.target sm_80\n.address_size 64\n"
                                   ".visible .entry simcudart_opaque() { ret; }\n";

static CUresult function_of(const void *host, CUfunction *out) {
    CUlibrary library;
    pthread_mutex_lock(&lock);
    struct kernel *kernel = kernel_get(host);
    CUresult result = kernel ? CUDA_SUCCESS : (CUresult)cudaErrorInvalidDeviceFunction;
    if (kernel && !kernel->opaque) {
        result = driver.cuLibraryLoadData(&library, opaque_image, NULL, NULL, 0, NULL, NULL, 0);
        if (!result)
            result = driver.cuLibraryGetKernel(&kernel->opaque, library, "simcudart_opaque");
    }
    if (!result)
        result = driver.cuKernelGetFunction(out, kernel->opaque);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t *out, const void *host) {
    WITH_CONTEXT(out ? function_of(host, (CUfunction *)out) : CUDA_ERROR_INVALID_VALUE);
}

/* --- launches --- */

/* Find a function, and the device time of a launch with these parameters. A clock cycle lasts for one nanosecond. */
static CUresult kernel_prepare(const void *host, void **params, CUkernel *out, uint64_t *nanoseconds) {
    CUresult result = kernel_find(host, out);
    if (result)
        return result;
    pthread_mutex_lock(&lock);
    int is_sleep = kernel_get(host)->is_sleep;
    pthread_mutex_unlock(&lock);
    int64_t cycles = is_sleep ? *(int64_t *)params[0] : 0;
    *nanoseconds = !is_sleep ? launch_ns() : cycles > 0 ? (uint64_t)cycles : 0;
    return CUDA_SUCCESS;
}

static CUresult launch(const void *host, dim3 grid, dim3 block, void **of_program, size_t shared, cudaStream_t stream,
                       int cooperative) {
    CUkernel kernel;
    uint64_t nanoseconds;
    CUresult result = kernel_prepare(host, of_program, &kernel, &nanoseconds);
    if (result)
        return result;
    void *params[] = {&nanoseconds};
    CUfunction function = (CUfunction)kernel; /* the driver takes either handle */
    if (cooperative)
        return driver.cuLaunchCooperativeKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z,
                                                (unsigned)shared, stream, params);
    return driver.cuLaunchKernel(function, grid.x, grid.y, grid.z, block.x, block.y, block.z, (unsigned)shared, stream,
                                 params, NULL);
}

EXPORT cudaError_t cudaLaunchKernel(const void *host, dim3 grid, dim3 block, void **params, size_t shared,
                                    cudaStream_t stream) {
    WITH_CONTEXT(launch(host, grid, block, params, shared, stream, 0));
}

EXPORT cudaError_t cudaLaunchCooperativeKernel(const void *host, dim3 grid, dim3 block, void **params, size_t shared,
                                               cudaStream_t stream) {
    WITH_CONTEXT(launch(host, grid, block, params, shared, stream, 1));
}

static CUresult launch_with(const cudaLaunchConfig_t *config, const void *host, void **of_program) {
    CUkernel kernel;
    uint64_t nanoseconds;
    CUresult result = kernel_prepare(host, of_program, &kernel, &nanoseconds);
    if (result)
        return result;
    CUlaunchConfig of_driver = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = (CUlaunchAttribute *)config->attrs,
        .numAttrs = config->numAttrs,
    };
    void *params[] = {&nanoseconds};
    return driver.cuLaunchKernelEx(&of_driver, (CUfunction)kernel, params, NULL);
}

EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **params) {
    WITH_CONTEXT(config ? launch_with(config, host, params) : CUDA_ERROR_INVALID_VALUE);
}

struct kernel *kernel_of_library(const char *name) {
    char *copy = strdup(name);
    pthread_mutex_lock(&lock);
    struct kernel *kernel = copy ? kernel_new(copy) : NULL;
    pthread_mutex_unlock(&lock);
    return kernel;
}

int simcudart_launch(const char *name, cudaStream_t stream) {
    pthread_mutex_lock(&lock);
    if (!kernel_get(name)) /* the address of the constant stands for the function */
        put(name, kernel_new(name));
    pthread_mutex_unlock(&lock);
    cudaError_t error = context_enter();
    return (int)(error ? error : (cudaError_t)launch(name, (dim3){16, 1, 1}, (dim3){128, 1, 1}, NULL, 0, stream, 0));
}

/* --- the calls that the compiler puts into programs --- */

struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
};
static __thread struct configuration pushed[16];
static __thread int depth;

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    if (depth == 16)
        return cudaErrorLaunchFailure;
    pushed[depth++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!depth)
        return cudaErrorMissingConfiguration;
    struct configuration top = pushed[--depth];
    *grid = top.grid;
    *block = top.block;
    *shared = top.shared;
    *(cudaStream_t *)stream = top.stream;
    return cudaSuccess;
}

EXPORT void **__cudaRegisterFatBinary(void *code) {
    void **handle = malloc(sizeof *handle);
    if (handle)
        *handle = code;
    return handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void **handle) {
    (void)handle;
}

EXPORT void __cudaUnregisterFatBinary(void **handle) {
    free(handle);
}

EXPORT char __cudaInitModule(void **handle) {
    (void)handle;
    return 0;
}

EXPORT void __cudaRegisterFunction(void **handle, const char *host, char *on_device, const char *name, int threads,
                                   uint3 *thread, uint3 *block, dim3 *block_shape, dim3 *grid_shape, int *warp) {
    (void)handle, (void)on_device, (void)threads, (void)thread, (void)block, (void)block_shape, (void)grid_shape,
        (void)warp;
    pthread_mutex_lock(&lock);
    put(host, kernel_new(name));
    pthread_mutex_unlock(&lock);
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *host) {
    pthread_mutex_lock(&lock);
    *out = (cudaKernel_t)kernel_get(host);
    pthread_mutex_unlock(&lock);
    return error_keep(*out ? cudaSuccess : cudaErrorInvalidDeviceFunction);
}

EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **params, size_t shared,
                                      cudaStream_t stream) {
    return cudaLaunchKernel((const void *)kernel, grid, block, params, shared, stream);
}
