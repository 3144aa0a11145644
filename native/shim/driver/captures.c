/* The program's captures. No call of the shim may end a capture or become a part of one, whatever its thread, the modes
 * and the streams. Three rules follow.
 *
 * 1. The shim's calls in a thread of the program run in the relaxed mode. In other modes the driver refuses calls that
 *    it takes for unsafe, and ends captures.
 * 2. The shim queries a stream, or records an event in it, only while it holds the lock below and the stream does not
 *    capture. The hooks hold the lock while a stream begins to capture, and while a context ends.
 * 3. The shim submits nothing to the legacy stream while work is in flight: that would order the work of all blocking
 *    streams, and end their captures. */
#include "driver/driver.h"

static pthread_mutex_t queries = PTHREAD_MUTEX_INITIALIZER;

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

bool blocking_streams_are_idle(void) {
    return !touches_capture(CU_STREAM_LEGACY) && REAL(cuStreamQuery)(CU_STREAM_LEGACY) != CUDA_ERROR_NOT_READY;
}

void captures_after_fork(void) {
    pthread_mutex_init(&queries, NULL);
}
