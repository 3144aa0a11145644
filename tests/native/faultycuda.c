/* Simulated driver with functions that count their calls, and that fail or hold their caller on demand of a test.
 *
 * This file is linked with the objects of the driver, in which these functions have the prefix real_. The driver's
 * cuGetProcAddress returns the functions with the prefix, which never fail on demand. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

static struct {
    char names[256];
    int after, times, code;
} fault;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Let the next `after` calls of these functions succeed, and the next `times` calls fail with `code`. */
EXPORT void faulty_next(const char *names, int after, int times, int code) {
    pthread_mutex_lock(&lock);
    strncpy(fault.names, names, sizeof fault.names - 1);
    fault.code = code;
    fault.after = after;
    fault.times = times;
    pthread_mutex_unlock(&lock);
}

static int fails(const char *name) {
    int code = 0;
    pthread_mutex_lock(&lock);
    if (fault.times && strstr(fault.names, name)) {
        code = fault.after > 0 ? 0 : fault.code;
        *(fault.after > 0 ? &fault.after : &fault.times) -= 1;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

/* 1: the next caller of `held_function` will be held. 2: a caller is held. */
static _Atomic int held;
static const char *_Atomic held_function;

/* Set and return the state of the hold, or only return it if the argument is below 0. */
EXPORT int faulty_hold(int wanted) {
    return wanted < 0 ? atomic_load(&held) : (atomic_store(&held, wanted), wanted);
}

/* Hold the next caller of the function, with the prefix "before_" before the driver's own function runs. */
EXPORT void faulty_hold_in(const char *name) {
    static char copy[64];
    strncpy(copy, name, sizeof copy - 1);
    atomic_store(&held_function, copy);
    atomic_store(&held, 1);
}

static _Atomic int hold_ms = 1000; /* about so long at most, because the test may wait for the caller */

EXPORT void faulty_hold_for(int milliseconds) {
    atomic_store(&hold_ms, milliseconds);
}

static void hold_caller(const char *name) {
    int next = 1;
    const char *function = atomic_load(&held_function);
    bool is_next = function && strcmp(name, function) == 0 && atomic_compare_exchange_strong(&held, &next, 2);
    for (int i = 0; i < atomic_load(&hold_ms) && is_next && atomic_load(&held) == 2; i++)
        usleep(1000);
}

#define FAULTY(name, parameters, arguments)                                                                            \
    int real_##name parameters;                                                                                        \
    EXPORT _Atomic unsigned calls_of_##name;                                                                           \
    EXPORT int name parameters {                                                                                       \
        int code = fails(#name);                                                                                       \
        hold_caller("before_" #name);                                                                                  \
        calls_of_##name++;                                                                                             \
        code = code ? code : real_##name arguments;                                                                    \
        hold_caller(#name);                                                                                            \
        return code;                                                                                                   \
    }

FAULTY(cuMemCreate, (uint64_t *handle, size_t bytes, const void *properties, unsigned long long flags),
       (handle, bytes, properties, flags))
FAULTY(cuMemMap, (uint64_t address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags),
       (address, bytes, offset, handle, flags))
FAULTY(cuMemSetAccess, (uint64_t address, size_t bytes, const void *access, size_t count),
       (address, bytes, access, count))
FAULTY(cuMemUnmap, (uint64_t address, size_t bytes), (address, bytes))
FAULTY(cuMemRelease, (uint64_t handle), (handle))
FAULTY(cuMemAddressReserve,
       (uint64_t *address, size_t bytes, size_t alignment, uint64_t hint, unsigned long long flags),
       (address, bytes, alignment, hint, flags))
FAULTY(cuMemHostRegister_v2, (void *memory, size_t bytes, unsigned flags), (memory, bytes, flags))
FAULTY(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream), (to, from, bytes, stream))
FAULTY(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream), (to, from, bytes, stream))
FAULTY(cuMemPrefetchAsync, (uint64_t address, size_t bytes, int device, void *stream), (address, bytes, device, stream))
FAULTY(cuEventCreate, (void **event, unsigned flags), (event, flags))
FAULTY(cuEventRecord, (void *event, void *stream), (event, stream))
FAULTY(cuEventQuery, (void *event), (event))
FAULTY(cuEventSynchronize, (void *event), (event))
FAULTY(cuStreamCreate, (void **stream, unsigned flags), (stream, flags))
FAULTY(cuStreamQuery, (void *stream), (stream))
FAULTY(cuStreamSynchronize, (void *stream), (stream))
FAULTY(cuCtxPushCurrent_v2, (void *context), (context))
FAULTY(cuCheckpointProcessLock, (int pid, void *arguments), (pid, arguments))
FAULTY(cuCheckpointProcessCheckpoint, (int pid, void *arguments), (pid, arguments))
FAULTY(cuCheckpointProcessRestore, (int pid, void *arguments), (pid, arguments))
FAULTY(cuCheckpointProcessUnlock, (int pid, void *arguments), (pid, arguments))
FAULTY(cuLaunchKernel,
       (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
        void *stream, void **parameters, void **extra),
       (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))

#define HELD(name, parameters, arguments)                                                                              \
    int real_##name parameters;                                                                                        \
    EXPORT int name parameters {                                                                                       \
        int code = real_##name arguments;                                                                              \
        hold_caller(#name);                                                                                            \
        return code;                                                                                                   \
    }

HELD(cuStreamIsCapturing, (void *stream, int *status), (stream, status))
HELD(cuMemPoolDestroy, (void *pool), (pool))
