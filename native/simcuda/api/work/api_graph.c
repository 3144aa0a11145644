/* The calls for graphs as a whole, and executable graphs: instantiation, update, upload, launch. */
#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"
#include "work/engine.h"
#include "module/module.h"
#include "api/memory/memory.h"

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

CUresult cuGraphClone(CUgraph *out, CUgraph graph) {
    SIM_ENTER();
    if (!out || !graph_is_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_has_conditional(graph))
        return CUDA_ERROR_NOT_SUPPORTED;
    *out = graph_copy(graph);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Load the code of the nodes into the context in which the nodes run. */
static CUresult load_code(const struct sim_graph_body *body, struct sim_context *context) {
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < body->count && !result; i++) {
        const struct sim_command *node = &body->node[i];
        if (node->kind == COMMAND_LAUNCH)
            result = code_load(node->launch.function->module, context);
        else if (node->kind == COMMAND_CONDITIONAL)
            for (unsigned each = 0; each < node->conditional.part->size && !result; each++)
                result = load_code(node->conditional.part->body[each], context);
    }
    return result;
}

static CUresult instantiate(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    SIM_ENTER();
    if (!out || !graph_is_valid(graph) || flags > CU_INSTANTIATE_FLAGS || !conditionals_are_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph_exec *exec = object_get(MAGIC_EXEC, sizeof *exec);
    struct sim_graph_body *body = graph_body(graph);
    struct sim_context *context = sim_thread.current;
    if (!exec || !body || (context_is_valid(context) && load_code(body, context))) {
        if (exec)
            object_put(exec, MAGIC_EXEC);
        if (body)
            graph_body_release(body);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->body = body;
    exec->flags = flags;
    exec->magic = MAGIC_EXEC;
    *out = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph graph, unsigned long long flags) {
    return instantiate(out, graph, flags);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph graph, CUgraphNode *failed, char *text, size_t size) {
    if (failed)
        *failed = NULL;
    if (text && size)
        *text = 0;
    return instantiate(out, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph graph, CUgraphNode *failed, char *text, size_t size) {
    return cuGraphInstantiate_v2(out, graph, failed, text, size);
}

CUresult sim_cuGraphInstantiateWithParams(CUstream fallback, CUgraphExec *out, CUgraph graph,
                                          CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    params->failed = NULL;
    CUresult result = instantiate(out, graph, params->flags);
    if (!result && (params->flags & CU_INSTANTIATE_UPLOAD) &&
        (result = sim_cuGraphUpload(fallback, *out, params->stream)))
        cuGraphExecDestroy(*out);
    params->result = result ? 1 : 0;
    return result;
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    SIM_ENTER();
    if (!exec_is_valid(exec))
        return CUDA_ERROR_INVALID_VALUE;
    exec->magic = 0;
    graph_body_release(exec->body);
    object_put(exec, MAGIC_EXEC);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, uint64_t *flags) {
    SIM_ENTER();
    if (!exec_is_valid(exec) || !flags)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    SIM_ENTER();
    if (!exec_is_valid(exec) || !graph_is_valid(graph) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph_body *body = graph_body(graph);
    if (!body)
        return CUDA_ERROR_OUT_OF_MEMORY;
    info->node = info->from = NULL;
    info->result = exec_update(exec, body);
    return info->result ? CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE : CUDA_SUCCESS;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *outcome) {
    CUgraphExecUpdateResultInfo info = {.result = CU_UPDATE_ERROR};
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (node)
        *node = NULL;
    if (outcome)
        *outcome = info.result;
    return result;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy,
                                        CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = context_is_valid(context) ? copy_command(copy, &command) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : exec_change_node(exec, node, &command);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = context_is_valid(context) ? set_command(params, &command) : CUDA_ERROR_INVALID_VALUE;
    return result ? result : exec_change_node(exec, node, &command);
}

CUresult sim_cuGraphUpload(CUstream fallback, CUgraphExec exec, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result || !exec_is_valid(exec))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if ((result = capture_refuse(stream)))
        return result;
    struct sim_graph_body *body = exec_body(exec);
    result = load_code(body, stream->context);
    for (size_t i = 0; i < body->count && !result; i++)
        if (body->node[i].kind == COMMAND_ALLOC_NODE && !(result = graph_memory_prepare(body->node[i].memory.memory)))
            graph_memory_launched(body->node[i].memory.memory);
    graph_body_release(body);
    return result;
}

/* A capturing stream takes no launch of a graph (microsoft/onnxruntime pull request 32081, measured on an H200). */
CUresult sim_cuGraphLaunch(CUstream fallback, CUgraphExec exec, CUstream handle) {
    struct sim_stream *stream;
    struct sim_command *command;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result || !exec_is_valid(exec))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if (atomic_load(&stream->capture))
        return capture_refuse(stream);
    struct sim_graph_body *body = exec_body(exec);
    if ((result = load_code(body, stream->context)) || (result = graph_prepare(body)) ||
        (result = engine_begin(stream, &command))) {
        graph_body_release(body);
        return result;
    }
    command->kind = COMMAND_GRAPH;
    command->graph.body = body;
    return engine_commit(stream);
}
