/* The program's captures. No call of the shim may end a capture or become a part of one, whatever its thread, the modes
 * and the streams. Three rules follow.
 *
 * 1. The shim's calls in a thread of the program run in the relaxed mode. In other modes the driver refuses calls that
 *    it takes for unsafe, and ends captures.
 * 2. The shim queries a stream, or records an event in it, only while it holds the lock below and the stream does not
 *    capture. The hooks hold the lock while a stream begins to capture or joins a capture, and while a context ends.
 *    A launch records its events without the lock, because the driver may wait for the device then. No call uses such
 *    an event if a stream has begun to capture or joined a capture meanwhile.
 * 3. The shim submits nothing to the legacy stream while work is in flight: that would order the work of all blocking
 *    streams, and end their captures. The exceptions are events next to a call of the program's own in that stream.
 *
 * Calls of the program may end captures. The driver refuses unsafe calls, also those that the shim replaces by others. */
#include "driver/driver.h"

#include <stdlib.h>

/* A capture, by the stream in which it began and must end. */
struct capture {
    CUstream stream;
    int mode;
    pthread_t thread; /* the name of a per-thread default stream means another stream in another thread */
    CUcontext context;
};

static pthread_mutex_t queries = PTHREAD_MUTEX_INITIALIZER;
static struct capture *captures; /* under the lock */
static unsigned room;
static _Atomic unsigned count;
static _Atomic uint64_t entries; /* streams that have begun to capture or joined a capture since the start */

#define NO_MODE (-1)

static int exchange_mode(int mode) {
    return REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS ? mode : NO_MODE;
}

int relaxed_mode_begin(void) {
    return exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
}

void relaxed_mode_end(const int *mode) {
    if (*mode != NO_MODE)
        exchange_mode(*mode);
}

void queries_lock(void) {
    pthread_mutex_lock(&queries);
}

void queries_unlock(void) {
    pthread_mutex_unlock(&queries);
}

bool touches_capture(CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = REAL(cuStreamIsCapturing)(stream, &status);
    return result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

CUresult record_outside_captures(CUevent event, CUstream stream) {
    if (pthread_mutex_trylock(&queries) != 0) /* its holder may wait for the device, and so for this thread */
        return CUDA_ERROR_NOT_READY;
    uint64_t before = entries;
    bool is_captured = touches_capture(stream);
    queries_unlock();
    if (is_captured)
        return CUDA_ERROR_CAPTURED_EVENT;
    CUresult result = REAL(cuEventRecord)(event, stream);
    return entries != before ? CUDA_ERROR_CAPTURED_EVENT : result;
}

bool blocking_streams_are_idle(void) {
    return !touches_capture(CU_STREAM_LEGACY) && REAL(cuStreamQuery)(CU_STREAM_LEGACY) != CUDA_ERROR_NOT_READY;
}

void captures_expect_stream(void) {
    entries++;
}

void captures_add(CUstream stream, int mode) {
    struct capture capture = {.stream = stream, .mode = mode, .thread = pthread_self()};
    if (count == room) {
        unsigned wanted = room ? 2 * room : 8;
        struct capture *grown = realloc(captures, wanted * sizeof *grown);
        if (!grown)
            return;
        captures = grown;
        room = wanted;
    }
    capture.context = stream_home(stream).context;
    captures[count++] = capture;
}

void captures_remove(CUstream stream) {
    for (unsigned i = 0; i < count; i++)
        if (captures[i].stream == stream &&
            (stream != CU_STREAM_PER_THREAD || pthread_equal(captures[i].thread, pthread_self())))
            captures[i--] = captures[--count];
}

void captures_remove_context(CUcontext context) {
    for (unsigned i = 0; i < count; i++)
        if (captures[i].context == context)
            captures[i--] = captures[--count];
}

/* Return true if the driver refuses an unsafe call of this thread. The documentation of
 * cuThreadExchangeStreamCaptureMode has the rule. */
static bool forbid_unsafe_calls(int thread_mode) {
    bool found = false;
    queries_lock();
    for (unsigned i = 0; i < count && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED; i++)
        found = found || (pthread_equal(captures[i].thread, pthread_self())
                              ? captures[i].mode != CU_STREAM_CAPTURE_MODE_RELAXED
                              : captures[i].mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                    thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    queries_unlock();
    return found;
}

CUresult captures_refuse_unsafe_call(void) {
    if (likely(!captures_any()))
        return CUDA_SUCCESS;
    int mode = relaxed_mode_begin();
    relaxed_mode_end(&mode);
    CUdeviceptr address;
    if (mode == NO_MODE || !forbid_unsafe_calls(mode))
        return CUDA_SUCCESS;
    CUresult result = REAL(cuMemAlloc_v2)(&address, 1);
    if (result == CUDA_SUCCESS)
        REAL(cuMemFree_v2)(address);
    return result == CUDA_ERROR_OUT_OF_MEMORY ? CUDA_SUCCESS : result;
}

bool captures_any(void) {
    return atomic_load_explicit(&count, memory_order_relaxed) != 0;
}

void captures_after_fork(void) {
    pthread_mutex_init(&queries, NULL);
    captures = NULL; /* left to the parent's heap image */
    room = count = 0;
}
