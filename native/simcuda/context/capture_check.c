/* The calls that are allowed during captures.
 *
 * Source of the rules: the driver's documentation of cuStreamBeginCapture, cuStreamIsCapturing and
 * cuThreadExchangeStreamCaptureMode, and the CUDA programming guide, "Prohibited and unhandled operations". Source of
 * the errors: measurements on NVIDIA hardware in ROCm/rocm-systems #4508 and #8338. Use of the legacy stream returns
 * 906, synchronising the context returns 900, and a query of a captured event returns 907. All these calls end the
 * capture in any mode and thread.
 *
 * A thread's relaxed mode allows only "potentially unsafe" calls, of which no document has a list. Allocation and
 * release are unsafe (documentation of cuThreadExchangeStreamCaptureMode). Queries of events and waits for events are
 * unsafe (pytorch/pytorch #104555). Attributes of pools are unsafe (NVIDIA/cccl #11360), and here those of graph memory
 * too. The end of a module is unsafe (NVIDIA/warp #401). Functions of the virtual-memory interface are safe, because
 * PyTorch's expandable segments grow during captures. */
#include "base/sim.h"
#include "context/context.h"

static int has_blocking_member(const struct sim_capture *capture, const struct sim_context *context) {
    for (const struct sim_stream *stream = capture->members; stream; stream = stream->next_member)
        if (stream->context == context && stream->is_blocking)
            return 1;
    return 0;
}

/* A primary context includes its green contexts. */
static int has_member(const struct sim_capture *capture, const struct sim_context *context) {
    for (const struct sim_stream *stream = capture->members; stream; stream = stream->next_member)
        if (stream->context == context || stream->context->primary == context)
            return 1;
    return 0;
}

struct sim_capture *capture_find(uint64_t id) {
    for (struct sim_capture *capture = sim.captures; capture; capture = capture->next)
        if (capture->id == id)
            return capture;
    return NULL;
}

CUresult capture_check_legacy(struct sim_context *context) {
    CUresult result = CUDA_SUCCESS;
    if (!atomic_load(&context->blocking_captures))
        return result;
    pthread_mutex_lock(&sim.capture_lock);
    for (struct sim_capture *capture = sim.captures; capture; capture = capture->next)
        if (has_blocking_member(capture, context)) {
            capture->invalid = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

CUresult capture_check_unsafe(void) {
    CUresult result = CUDA_SUCCESS;
    if (!atomic_load_explicit(&sim.capture_count, memory_order_relaxed) ||
        sim_thread.capture_mode == CU_CAPTURE_RELAXED)
        return result;
    pthread_mutex_lock(&sim.capture_lock);
    for (struct sim_capture *capture = sim.captures; capture; capture = capture->next) {
        int own = pthread_equal(capture->thread, pthread_self());
        if ((own && capture->mode != CU_CAPTURE_RELAXED) ||
            (!own && sim_thread.capture_mode == CU_CAPTURE_GLOBAL && capture->mode == CU_CAPTURE_GLOBAL)) {
            capture->invalid = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

CUresult capture_check_context(struct sim_context *context) {
    CUresult result = CUDA_SUCCESS;
    if (!atomic_load(&sim.capture_count))
        return result;
    pthread_mutex_lock(&sim.capture_lock);
    for (struct sim_capture *capture = sim.captures; capture; capture = capture->next)
        if (has_member(capture, context)) {
            capture->invalid = 1;
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

CUresult capture_refuse(struct sim_stream *stream) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    if (capture) {
        capture->invalid = 1;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

CUresult capture_check_event(const struct sim_event *event) {
    if (!event->capture_id)
        return CUDA_SUCCESS;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = capture_find(event->capture_id);
    if (capture)
        capture->invalid = 1;
    pthread_mutex_unlock(&sim.capture_lock);
    return CUDA_ERROR_CAPTURED_EVENT;
}
