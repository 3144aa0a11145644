/* The current device of each thread, and primary contexts. */
#include "runtime.h"

#include <pthread.h>

#define MAX_DEVICES 64

static __thread int device_of_thread;
static CUcontext primary[MAX_DEVICES]; /* retained once, for the life of the process */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static CUresult primary_context(int device, CUcontext *out) {
    if (device < 0 || device >= MAX_DEVICES)
        return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&lock);
    CUresult result = primary[device] ? CUDA_SUCCESS : driver.cuDevicePrimaryCtxRetain(&primary[device], device);
    *out = primary[device];
    pthread_mutex_unlock(&lock);
    return result;
}

static cudaError_t make_current(int device) {
    CUcontext context;
    CUresult result = primary_context(device, &context);
    return (cudaError_t)(result ? result : driver.cuCtxSetCurrent(context));
}

cudaError_t context_enter(void) {
    cudaError_t error = driver_enter();
    CUcontext current = NULL;
    if (!error)
        error = (cudaError_t)driver.cuCtxGetCurrent(&current);
    return error || current ? error : make_current(device_of_thread);
}

cudaError_t context_reset(void) {
    cudaError_t error = driver_enter();
    if (error)
        return error;
    pthread_mutex_lock(&lock);
    if (device_of_thread < MAX_DEVICES && primary[device_of_thread]) {
        error = (cudaError_t)driver.cuDevicePrimaryCtxReset(device_of_thread);
        primary[device_of_thread] = NULL;
        driver.cuCtxSetCurrent(NULL);
    }
    pthread_mutex_unlock(&lock);
    return error;
}

EXPORT cudaError_t cudaGetDevice(int *device) {
    CUcontext current = NULL;
    cudaError_t error = device ? driver_enter() : cudaErrorInvalidValue;
    if (!error && !driver.cuCtxGetCurrent(&current) && current)
        return error_keep((cudaError_t)driver.cuCtxGetDevice(device));
    if (!error)
        *device = device_of_thread;
    return error_keep(error);
}

EXPORT cudaError_t cudaSetDevice(int device) {
    cudaError_t error = driver_enter();
    int count = 0;
    if (!error)
        error = (cudaError_t)driver.cuDeviceGetCount(&count);
    if (!error && (device < 0 || device >= count))
        error = cudaErrorInvalidDevice;
    if (!error)
        error = make_current(device);
    if (!error)
        device_of_thread = device;
    return error_keep(error);
}
