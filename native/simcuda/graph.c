/* Graphs made by capture: their nodes run one after the other in the order of capture, which respects all
 * edges. */
#include <stdlib.h>
#include <string.h>

#include "api.h"

struct sim_graph {
    uint32_t magic;
    struct sim_command **node;
    size_t count, room;
};

struct sim_graph_exec {
    uint32_t magic;
    _Atomic uint32_t references;
    struct sim_command *node;
    size_t count;
    uint64_t flags;
};

static int graph_is_valid(CUgraph graph) {
    return sim_is_object(graph) && graph->magic == MAGIC_GRAPH;
}

static int exec_is_valid(CUgraphExec exec) {
    return sim_is_object(exec) && exec->magic == MAGIC_EXEC;
}

struct sim_graph *graph_new(void) {
    struct sim_graph *graph = object_get(MAGIC_GRAPH, sizeof *graph);
    if (!graph)
        return NULL;
    memset(graph, 0, sizeof *graph);
    graph->magic = MAGIC_GRAPH;
    return graph;
}

void graph_free(struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        free(graph->node[i]);
    free(graph->node);
    object_put(graph, MAGIC_GRAPH);
}

struct sim_command *graph_append(struct sim_graph *graph) {
    if (graph->count == graph->room) {
        size_t room = graph->room ? graph->room * 2 : 16;
        struct sim_command **node = realloc(graph->node, room * sizeof *node);
        if (!node)
            return NULL;
        graph->node = node;
        graph->room = room;
    }
    struct sim_command *command = calloc(1, sizeof *command);
    if (command)
        graph->node[graph->count++] = command;
    return command;
}

size_t graph_last(struct sim_graph *graph, const CUgraphNode **nodes) {
    *nodes = graph->count ? &graph->node[graph->count - 1] : NULL;
    return graph->count ? 1 : 0;
}

static void release(struct sim_graph_exec *exec) {
    if (atomic_fetch_sub(&exec->references, 1) != 1)
        return;
    free(exec->node);
    object_put(exec, MAGIC_EXEC);
}

void graph_execute(struct sim_stream *stream, struct sim_graph_exec *exec) {
    for (size_t i = 0; i < exec->count; i++) {
        struct sim_command command = exec->node[i];
        execute(stream, &command);
    }
    release(exec);
}

CUresult cuGraphCreate(CUgraph *out, unsigned flags) {
    SIM_ENTER();
    if (!out || flags)
        return CUDA_ERROR_INVALID_VALUE;
    *out = graph_new();
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuGraphDestroy(CUgraph graph) {
    SIM_ENTER();
    if (!graph_is_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    graph_free(graph);
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    SIM_ENTER();
    if (!graph_is_valid(graph) || !count)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes)
        for (size_t i = 0; i < *count; i++)
            nodes[i] = i < graph->count ? graph->node[i] : NULL;
    if (!nodes || *count > graph->count)
        *count = graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    SIM_ENTER();
    if (!out || !graph_is_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph_exec *exec = object_get(MAGIC_EXEC, sizeof *exec);
    if (!exec)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memset(exec, 0, sizeof *exec);
    exec->node = calloc(graph->count + 1, sizeof *exec->node);
    if (!exec->node) {
        object_put(exec, MAGIC_EXEC);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    for (size_t i = 0; i < graph->count; i++)
        exec->node[i] = *graph->node[i];
    exec->count = graph->count;
    exec->flags = flags;
    atomic_store(&exec->references, 1);
    exec->magic = MAGIC_EXEC;
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *failed, char *text, size_t size) {
    if (failed)
        *failed = NULL;
    if (text && size)
        *text = 0;
    return cuGraphInstantiateWithFlags(out, graph, 0);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    SIM_ENTER();
    if (!exec_is_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    exec->magic = 0;
    release(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
    SIM_ENTER();
    if (!exec_is_valid(exec) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult sim_cuGraphUpload(CUstream fallback, CUgraphExec exec, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    return result ? result : exec_is_valid(exec) ? capture_refuse(stream) : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_cuGraphLaunch(CUstream fallback, CUgraphExec exec, CUstream handle) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result)
        return result;
    if (!exec_is_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&stream->capture))
        return CUDA_ERROR_NOT_SUPPORTED; /* graphs inside graphs are not simulated */
    if ((result = engine_begin(stream, &command)))
        return result;
    atomic_fetch_add(&exec->references, 1);
    command->kind = COMMAND_GRAPH;
    command->graph.exec = exec;
    return engine_commit(stream);
}
