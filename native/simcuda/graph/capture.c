/* Stream capture: its begin and end, and its streams. */
#include <stdlib.h>

#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"

CUresult capture_append(struct sim_stream *stream, struct sim_command **out) {
    CUresult result = CUDA_SUCCESS;
    *out = NULL;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    if (capture && capture->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (capture && !(*out = graph_append(capture->graph)))
        result = CUDA_ERROR_OUT_OF_MEMORY;
    if (*out) {
        stream->captured++;
        stream->joined = 0;
        return CUDA_SUCCESS; /* locked until engine_commit */
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

/* The stream's lock and sim.capture_lock are held. */
static void add_member(struct sim_capture *capture, struct sim_stream *stream) {
    stream->captured = 0;
    stream->joined = 0;
    stream->next_member = capture->members;
    capture->members = stream;
    if (stream->is_blocking)
        atomic_fetch_add(&stream->context->blocking_captures, 1);
    atomic_store(&stream->capture, capture);
}

/* sim.capture_lock is held. */
static void remove_members(struct sim_capture *capture) {
    while (capture->members) {
        struct sim_stream *stream = capture->members;
        capture->members = stream->next_member;
        stream->next_member = NULL;
        if (stream->is_blocking)
            atomic_fetch_sub(&stream->context->blocking_captures, 1);
        atomic_store(&stream->capture, NULL);
    }
}

static void discard(struct sim_capture *capture) {
    if (capture->has_own_graph)
        graph_free(capture->graph);
    free(capture);
}

void capture_discard(struct sim_stream *stream) {
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    if (capture) {
        if (stream == capture->origin || !stream->joined)
            capture->invalid = 1;
        for (struct sim_stream **link = &capture->members; *link; link = &(*link)->next_member)
            if (*link == stream) {
                *link = stream->next_member;
                break;
            }
        if (stream->is_blocking)
            atomic_fetch_sub(&stream->context->blocking_captures, 1);
        atomic_store(&stream->capture, NULL);
        if (!capture->members) { /* no stream is left to end it */
            for (struct sim_capture **link = &sim.captures; *link; link = &(*link)->next)
                if (*link == capture) {
                    *link = capture->next;
                    break;
                }
            atomic_fetch_sub(&sim.capture_count, 1);
            discard(capture);
        }
    }
    pthread_mutex_unlock(&sim.capture_lock);
}

CUresult capture_record(struct sim_event *event, struct sim_stream *stream) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    if (!capture) {
        result = CUDA_ERROR_NOT_READY; /* it has just ended: record as usual */
    } else if (capture->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else {
        event->capture_id = capture->id;
        event->stream_id = stream->id;
        event->captured = stream->captured;
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

static CUresult refuse_both(struct sim_capture *one, struct sim_capture *other, CUresult error) {
    if (one)
        one->invalid = 1;
    if (other)
        other->invalid = 1;
    return error;
}

/* `stream` waits for an event of its capture. sim.capture_lock is held. */
static void join(const struct sim_capture *capture, const struct sim_event *event, const struct sim_stream *stream) {
    for (struct sim_stream *other = capture->members; other; other = other->next_member)
        if (other->id == event->stream_id && other != stream && other->captured == event->captured)
            other->joined = 1;
}

CUresult capture_wait(struct sim_event *event, struct sim_stream *stream) {
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&stream->lock);
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *own = atomic_load(&stream->capture), *its = capture_find(event->capture_id);
    if (own && own->invalid)
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    else if (!event->capture_id && !own)
        result = CUDA_ERROR_NOT_READY; /* not part of a capture: wait as usual */
    else if (!event->capture_id)
        result = atomic_load(&event->progress->recorded) ? refuse_both(own, NULL, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                                                         : CUDA_SUCCESS;
    else if (!its)
        result = own ? refuse_both(own, NULL, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_ERROR_CAPTURED_EVENT;
    else if (stream->is_legacy)
        result = refuse_both(its, NULL, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    else if (!own)
        add_member(its, stream); /* the stream becomes part of the event's capture */
    else if (own != its)
        result = refuse_both(own, its, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    else
        join(own, event, stream);
    pthread_mutex_unlock(&sim.capture_lock);
    pthread_mutex_unlock(&stream->lock);
    return result;
}

/* `graph` is the program's own; NULL: the capture makes one. */
static CUresult begin(CUstream fallback, CUstream handle, int mode, struct sim_graph *graph) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (mode < CU_CAPTURE_GLOBAL || mode > CU_CAPTURE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    struct sim_capture *capture = calloc(1, sizeof *capture);
    if (!capture || !(capture->graph = graph ? graph : graph_new())) {
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->has_own_graph = !graph;
    pthread_mutex_lock(&stream->lock);
    pthread_mutex_lock(&sim.capture_lock);
    if (atomic_load(&stream->capture)) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else {
        capture->id = atomic_fetch_add(&sim.next_id, 1) + 1;
        capture->mode = mode;
        capture->thread = pthread_self();
        capture->origin = stream;
        capture->next = sim.captures;
        sim.captures = capture;
        atomic_fetch_add(&sim.capture_count, 1);
        add_member(capture, stream);
    }
    pthread_mutex_unlock(&sim.capture_lock);
    pthread_mutex_unlock(&stream->lock);
    if (result)
        discard(capture);
    return result;
}

CUresult sim_cuStreamBeginCapture_v2(CUstream fallback, CUstream handle, int mode) {
    return begin(fallback, handle, mode, NULL);
}

CUresult sim_cuStreamBeginCaptureToGraph(CUstream fallback, CUstream handle, CUgraph graph, const CUgraphNode *nodes,
                                         const void *edges, size_t count, int mode) {
    (void)edges;
    if (!sim_is_object(graph) || graph->magic != MAGIC_GRAPH)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = graph_set_tip(graph, nodes, count, 0);
    return result ? result : begin(fallback, handle, mode, graph);
}

CUresult sim_cuStreamUpdateCaptureDependencies_v2(CUstream fallback, CUstream handle, CUgraphNode *nodes,
                                                  const void *edges, size_t count, unsigned flags) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    (void)edges;
    if (result || flags > CU_CAPTURE_SET_DEPENDENCIES)
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    result = capture ? graph_set_tip(capture->graph, nodes, count, flags != CU_CAPTURE_SET_DEPENDENCIES)
                     : CUDA_ERROR_ILLEGAL_STATE;
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}

CUresult sim_cuStreamUpdateCaptureDependencies(CUstream fallback, CUstream handle, CUgraphNode *nodes, size_t count,
                                               unsigned flags) {
    return sim_cuStreamUpdateCaptureDependencies_v2(fallback, handle, nodes, NULL, count, flags);
}

CUresult sim_cuStreamEndCapture(CUstream fallback, CUstream handle, CUgraph *out) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    *out = NULL;
    pthread_mutex_lock(&sim.capture_lock);
    struct sim_capture *capture = atomic_load(&stream->capture);
    if (!capture) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->origin != stream) {
        result = refuse_both(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    } else if (capture->mode != CU_CAPTURE_RELAXED && !pthread_equal(capture->thread, pthread_self())) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        if (capture->invalid)
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        for (struct sim_stream *member = capture->members; member && !result; member = member->next_member)
            if (member != stream && !member->joined)
                result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        for (struct sim_capture **link = &sim.captures; *link; link = &(*link)->next)
            if (*link == capture) {
                *link = capture->next;
                break;
            }
        remove_members(capture);
        atomic_fetch_sub(&sim.capture_count, 1);
        if (!result) {
            *out = capture->graph;
            capture->has_own_graph = 0;
        }
        discard(capture);
    }
    pthread_mutex_unlock(&sim.capture_lock);
    return result;
}
