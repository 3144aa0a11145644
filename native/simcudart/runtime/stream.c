/* Streams, events and captures. */
#include "runtime.h"

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream) {
    WITH_CONTEXT(driver.cuStreamCreateWithPriority(stream, 0, 0));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    WITH_CONTEXT(driver.cuStreamCreateWithPriority(stream, flags, 0));
}

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    WITH_CONTEXT(driver.cuStreamCreateWithPriority(stream, flags, priority));
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    WITH_CONTEXT(driver.cuStreamDestroy(stream));
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    WITH_CONTEXT(driver.cuStreamQuery(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    WITH_CONTEXT(driver.cuStreamSynchronize(stream));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    WITH_CONTEXT(driver.cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
    WITH_CONTEXT(driver.cuStreamGetPriority(stream, priority));
}

EXPORT cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) {
    WITH_CONTEXT(driver.cuStreamGetFlags(stream, flags));
}

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void *data,
                                         unsigned flags) {
    WITH_CONTEXT(driver.cuStreamAddCallback(stream, (CUstreamCallback)function, data, flags));
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    WITH_CONTEXT(driver.cuLaunchHostFunc(stream, function, data));
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    WITH_CONTEXT(driver.cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t *nodes,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode) {
    WITH_CONTEXT(driver.cuStreamBeginCaptureToGraph(stream, graph, nodes, (const CUgraphEdgeData *)edges, count,
                                                    (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
    WITH_CONTEXT(driver.cuStreamEndCapture(stream, graph));
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    WITH_CONTEXT(driver.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                            const cudaGraphEdgeData **edges, size_t *count) {
    WITH_CONTEXT(driver.cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status, (cuuint64_t *)id, graph, nodes,
                                               (const CUgraphEdgeData **)edges, count));
}

EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
                                                       const cudaGraphEdgeData *edges, size_t count, unsigned flags) {
    WITH_CONTEXT(driver.cuStreamUpdateCaptureDependencies(stream, nodes, (const CUgraphEdgeData *)edges, count, flags));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    WITH_DRIVER(driver.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}

/* --- events --- */

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) {
    WITH_CONTEXT(driver.cuEventCreate(event, 0));
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    WITH_CONTEXT(driver.cuEventCreate(event, flags));
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    WITH_CONTEXT(driver.cuEventDestroy(event));
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    WITH_CONTEXT(driver.cuEventRecord(event, stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    WITH_CONTEXT(driver.cuEventRecordWithFlags(event, stream, flags));
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    WITH_CONTEXT(driver.cuEventQuery(event));
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    WITH_CONTEXT(driver.cuEventSynchronize(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end) {
    WITH_CONTEXT(driver.cuEventElapsedTime(milliseconds, start, end));
}
