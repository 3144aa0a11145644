/* Queries of captures, none of which disturbs a capture; and the exchange of the thread's capture mode. */
#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"

#define MAX_EDGES 4096
#define EDGE_DATA_BYTES 8

static const char ordinary_edges[MAX_EDGES][EDGE_DATA_BYTES];

/* The legacy stream is unusable, but not itself capturing, while a blocking stream captures. */
static CUresult state_of(CUstream fallback, CUstream handle, struct sim_stream **out) {
    CUresult result = stream_resolve(handle, fallback, out);
    if (!result && (*out)->is_legacy && atomic_load(&(*out)->context->blocking_captures))
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    return result;
}

CUresult sim_cuStreamIsCapturing(CUstream fallback, CUstream handle, int *status) {
    return sim_cuStreamGetCaptureInfo(fallback, handle, status, NULL);
}

CUresult sim_cuStreamGetCaptureInfo(CUstream fallback, CUstream handle, int *status, uint64_t *id) {
    return sim_cuStreamGetCaptureInfo_v3(fallback, handle, status, id, NULL, NULL, NULL, NULL);
}

CUresult sim_cuStreamGetCaptureInfo_v2(CUstream fallback, CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                       const CUgraphNode **nodes, size_t *count) {
    return sim_cuStreamGetCaptureInfo_v3(fallback, handle, status, id, graph, nodes, NULL, count);
}

CUresult sim_cuStreamGetCaptureInfo_v3(CUstream fallback, CUstream handle, int *status, uint64_t *id, CUgraph *graph,
                                       const CUgraphNode **nodes, const void **edges, size_t *count) {
    struct sim_stream *stream;
    CUresult result = state_of(fallback, handle, &stream);
    if (result)
        return result;
    if (!status)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    *status = !capture ? CU_CAPTURE_NONE : capture->invalid ? CU_CAPTURE_INVALIDATED : CU_CAPTURE_ACTIVE;
    if (*status == CU_CAPTURE_ACTIVE) {
        if (id)
            *id = capture->id;
        if (graph)
            *graph = capture->graph;
        if (nodes)
            *nodes = capture->graph->tip.node;
        if (edges) /* their data is optional, but an array for each of them is returned */
            *edges = ordinary_edges;
        if (count)
            *count = capture->graph->tip.count;
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    SIM_ENTER();
    if (!mode || *mode < CU_CAPTURE_GLOBAL || *mode > CU_CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    int before = sim_thread.capture_mode;
    sim_thread.capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
