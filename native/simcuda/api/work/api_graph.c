/* The calls for graphs as a whole, and executable graphs: instantiation, update, upload, launch. */
#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"
#include "work/engine.h"
#include "module/module.h"
#include "api/memory/memory.h"

struct sim_graph_exec {
    uint32_t magic;
    struct sim_graph_body *body; /* under the lock: an update replaces it */
    uint64_t flags;
};

static pthread_mutex_t bodies_lock = PTHREAD_MUTEX_INITIALIZER;

static int exec_is_valid(CUgraphExec exec) {
    return sim_is_object(exec) && exec->magic == MAGIC_EXEC;
}

/* Return what a launch executes now, with a reference. */
static struct sim_graph_body *body_of(struct sim_graph_exec *exec) {
    pthread_mutex_lock(&bodies_lock);
    struct sim_graph_body *body = exec->body;
    atomic_fetch_add(&body->references, 1);
    pthread_mutex_unlock(&bodies_lock);
    return body;
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

/* Copies must be linear, and a set keeps its rows. Source: documentation of cuGraphExecMemcpyNodeSetParams and
 * cuGraphExecMemsetNodeSetParams. */
static int are_exchangeable(const struct sim_command *old, const struct sim_command *new) {
    if (old->kind != new->kind)
        return 0;
    if (old->kind == COMMAND_COPY)
        return old->copy.height == 1 && old->copy.depth == 1 && new->copy.height == 1 && new->copy.depth == 1;
    return old->set.height == new->set.height && (old->set.height == 1 || old->set.width == new->set.width);
}

/* Parameters may change, also in the bodies of conditional nodes. Kinds and the number of nodes may not, and memory
 * nodes not at all. */
static int compare(const struct sim_graph_body *old, const struct sim_graph_body *new) {
    if (old->count != new->count)
        return CU_UPDATE_TOPOLOGY_CHANGED;
    for (size_t i = 0; i < old->count; i++) {
        if (old->node[i].kind != new->node[i].kind)
            return CU_UPDATE_NODE_TYPE_CHANGED;
        if (old->node[i].kind == COMMAND_CONDITIONAL) {
            const struct sim_conditional *one = old->node[i].conditional.part, *other = new->node[i].conditional.part;
            int result = one->type != other->type || one->size != other->size ? CU_UPDATE_NOT_SUPPORTED : 0;
            for (unsigned each = 0; !result && each < one->size; each++)
                result = compare(one->body[each], other->body[each]);
            if (result)
                return result;
        }
        if (old->node[i].kind == COMMAND_ALLOC_NODE || old->node[i].kind == COMMAND_FREE_NODE)
            return CU_UPDATE_NOT_SUPPORTED;
    }
    return CU_UPDATE_SUCCESS;
}

/* Launches in flight keep the nodes with which they were launched. */
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info) {
    SIM_ENTER();
    if (!exec_is_valid(exec) || !graph_is_valid(graph) || !info)
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_graph_body *body = graph_body(graph);
    if (!body)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&bodies_lock);
    info->node = info->from = NULL;
    info->result = compare(exec->body, body);
    struct sim_graph_body *unused = info->result ? body : exec->body;
    if (!info->result)
        exec->body = body;
    pthread_mutex_unlock(&bodies_lock);
    graph_body_release(unused);
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

/* Change a node as though it had had this command at instantiation. Launches in flight keep their nodes. */
static CUresult change_node(CUgraphExec exec, CUgraphNode node, CUcontext context, const struct sim_command *command) {
    if (!exec_is_valid(exec) || !context_is_valid(context))
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&bodies_lock);
    const struct sim_command *old = graph_body_find(exec->body, node);
    CUresult result = old && are_exchangeable(old, command) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    struct sim_graph_body *changed = result ? NULL : graph_body_copy(exec->body), *unused = changed ? exec->body : NULL;
    if (changed) {
        *graph_body_find(changed, node) = *command;
        exec->body = changed;
    } else if (!result) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&bodies_lock);
    if (unused)
        graph_body_release(unused);
    return result;
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy,
                                        CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = copy_command(copy, &command);
    return result ? result : change_node(exec, node, context, &command);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = set_command(params, &command);
    return result ? result : change_node(exec, node, context, &command);
}

CUresult sim_cuGraphUpload(CUstream fallback, CUgraphExec exec, CUstream handle) {
    struct sim_stream *stream;
    CUresult result = stream_resolve(handle, fallback, &stream);
    if (result || !exec_is_valid(exec))
        return result ? result : CUDA_ERROR_INVALID_VALUE;
    if ((result = capture_refuse(stream)))
        return result;
    struct sim_graph_body *body = body_of(exec);
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
    struct sim_graph_body *body = body_of(exec);
    if ((result = load_code(body, stream->context)) || (result = graph_prepare(body)) ||
        (result = engine_begin(stream, &command))) {
        graph_body_release(body);
        return result;
    }
    command->kind = COMMAND_GRAPH;
    command->graph.body = body;
    return engine_commit(stream);
}
