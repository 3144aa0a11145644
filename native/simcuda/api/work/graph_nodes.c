/* Nodes added to a graph by hand, and removed from it. A node is behind all its dependencies, because those must
 * exist when it is added. */
#include <string.h>

#include "base/exports.h"
#include "context/context.h"
#include "graph/graph.h"
#include "api/memory/memory.h"
#include "api/work/work.h"

static CUresult add(CUgraphNode *out, CUgraph graph, const CUgraphNode *after, size_t count, uint32_t kind) {
    SIM_ENTER();
    if (!out || !graph_is_valid(graph))
        return CUDA_ERROR_INVALID_VALUE;
    struct sim_command *node = graph_append(graph);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    node->kind = COMMAND_EMPTY;
    CUresult result = graph_set_dependencies(graph, node, after, count);
    if (result) {
        graph_remove_last(graph);
        return result;
    }
    node->kind = kind;
    *out = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count) {
    return add(node, graph, after, count, COMMAND_EMPTY);
}

static CUresult kernel_node_command(const CUDA_KERNEL_NODE_PARAMS *params, struct sim_command *command) {
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    return launch_command(params->function ? params->function : params->kernel, params->grid, params->block,
                          params->shared_bytes, params->parameters, params->extra, command);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *params) {
    struct sim_command command = {0};
    CUresult result = kernel_node_command(params, &command);
    if (!result && !(result = add(node, graph, after, count, COMMAND_LAUNCH)))
        **node = command;
    return result;
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *params) {
    CUDA_KERNEL_NODE_PARAMS all = {0};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&all, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return cuGraphAddKernelNode_v2(node, graph, after, count, &all);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    struct sim_command command = {0};
    SIM_ENTER();
    if (!graph_node_is_valid(node) || node->kind != COMMAND_LAUNCH)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = kernel_node_command(params, &command);
    if (!result)
        *node = command;
    return result;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    CUDA_KERNEL_NODE_PARAMS all = {0};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&all, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return cuGraphKernelNodeSetParams_v2(node, &all);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = kernel_node_command(params, &command);
    return result ? result : exec_change_node(exec, node, &command);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
    CUDA_KERNEL_NODE_PARAMS all = {0};
    if (!params)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&all, params, offsetof(CUDA_KERNEL_NODE_PARAMS, kernel));
    return cuGraphExecKernelNodeSetParams_v2(exec, node, &all);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    SIM_ENTER();
    if (!exec_is_valid(exec) || !graph_node_is_valid(node) || node->kind != COMMAND_CHILD || !graph_is_valid(child))
        return CUDA_ERROR_INVALID_VALUE;
    return exec_change_child(exec, node, child);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                            const CUDA_HOST_NODE_PARAMS *params) {
    CUresult result =
        params && params->function ? add(node, graph, after, count, COMMAND_HOST) : CUDA_ERROR_INVALID_VALUE;
    if (!result) {
        (*node)->host.function = params->function;
        (*node)->host.data = params->data;
    }
    return result;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                  CUgraph child) {
    if (!graph_is_valid(child))
        return CUDA_ERROR_INVALID_VALUE;
    if (graph_has_conditional(child))
        return CUDA_ERROR_NOT_SUPPORTED;
    struct sim_graph *copy = graph_copy(child);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = add(node, graph, after, count, COMMAND_CHILD);
    if (result)
        graph_free(copy);
    else
        (*node)->child.graph = copy;
    return result;
}

static CUresult add_event(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, uint32_t kind,
                          CUevent event) {
    if (!sim_is_object(event) || event->magic != MAGIC_EVENT)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(node, graph, after, count, kind);
    if (!result) {
        atomic_fetch_add(&event->pending, 1);
        (*node)->event.event = event;
    }
    return result;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                   CUevent event) {
    return add_event(node, graph, after, count, COMMAND_RECORD_NODE, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                 CUevent event) {
    return add_event(node, graph, after, count, COMMAND_WAIT_NODE, event);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    int device;
    SIM_ENTER();
    if (!params || params->pool.type != CU_MEM_ALLOCATION_PINNED ||
        params->pool.location.type != CU_MEM_LOCATION_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = device_of(params->pool.location.id, &device);
    struct sim_graph_memory *memory;
    if (result || (result = graph_memory_new(device, params->bytes, &memory)))
        return result;
    if ((result = add(node, graph, after, count, COMMAND_ALLOC_NODE))) {
        graph_memory_drop(memory);
        return result;
    }
    uint64_t bytes;
    (*node)->memory.memory = memory;
    params->address = graph_memory_address(memory, &bytes, &device);
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                               CUdeviceptr address) {
    struct sim_graph_memory *memory = graph_memory_at(address);
    if (!memory)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = add(node, graph, after, count, COMMAND_FREE_NODE);
    if (result)
        graph_memory_drop(memory);
    else
        (*node)->memory.memory = memory;
    return result;
}

/* A node runs in the context of the stream of the launch, as all work of a graph here. */
static CUresult add_command(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, CUcontext context,
                            const struct sim_command *command) {
    if (!context_is_valid(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = add(node, graph, after, count, command->kind);
    if (!result)
        **node = *command;
    return result;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_MEMCPY3D *copy, CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = copy_command(copy, &command);
    return result ? result : add_command(node, graph, after, count, context, &command);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext context) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = set_command(params, &command);
    return result ? result : add_command(node, graph, after, count, context, &command);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *copy) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = graph_node_is_valid(node) && node->kind == COMMAND_COPY ? copy_command(copy, &command)
                                                                              : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *node = command;
    return result;
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params) {
    struct sim_command command = {0};
    SIM_ENTER();
    CUresult result = graph_node_is_valid(node) && node->kind == COMMAND_SET ? set_command(params, &command)
                                                                             : CUDA_ERROR_INVALID_VALUE;
    if (!result)
        *node = command;
    return result;
}

static CUresult add_conditional(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count,
                                CUDA_CONDITIONAL_NODE_PARAMS *params) {
    struct sim_command made = {.kind = COMMAND_CONDITIONAL};
    SIM_ENTER();
    CUresult result = conditional_new(params, &made.conditional.part);
    if (result)
        return result;
    struct sim_conditional *part = made.conditional.part;
    for (unsigned i = 0; i < part->size && !result; i++)
        if (!(part->graph[i] = graph_new()))
            result = CUDA_ERROR_OUT_OF_MEMORY;
    if (result || (result = add(node, graph, after, count, COMMAND_CONDITIONAL))) {
        graph_drop_node(&made);
        return result;
    }
    **node = made;
    params->graphs = part->graph;
    return CUDA_SUCCESS;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *out, CUgraph graph, CUcontext context, unsigned value,
                                        unsigned flags) {
    SIM_ENTER();
    if (!context)
        context = sim_thread.current;
    if (!out || !graph_is_valid(graph) || flags & ~CU_COND_ASSIGN_DEFAULT)
        return CUDA_ERROR_INVALID_VALUE;
    return context_is_valid(context) ? condition_new(graph, context, value, flags, out) : CUDA_ERROR_INVALID_CONTEXT;
}

/* As CUgraphNodeParams. */
struct node_params {
    int type, reserved[3];
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        struct {
            int flags, reserved;
            CUcontext context;
            CUDA_MEMCPY3D params;
        } copy;
        struct {
            CUDA_MEMSET_NODE_PARAMS params;
            CUcontext context;
        } set;
        CUDA_HOST_NODE_PARAMS host;
        CUgraph child;
        CUevent event;
        CUDA_MEM_ALLOC_NODE_PARAMS alloc;
        CUdeviceptr free;
        CUDA_CONDITIONAL_NODE_PARAMS conditional;
        char room[232];
    };
};

static CUcontext or_current(CUcontext context) {
    return context ? context : sim_thread.current;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count,
                           void *params) {
    struct node_params *given = params;
    if (!given)
        return CUDA_ERROR_INVALID_VALUE;
    if (!edges_are_ordinary(edges, count))
        return CUDA_ERROR_NOT_SUPPORTED;
    switch (given->type) {
    case CU_NODE_KERNEL:
        return cuGraphAddKernelNode_v2(node, graph, after, count, &given->kernel);
    case CU_NODE_MEMCPY:
        if (given->copy.flags || given->copy.reserved)
            return CUDA_ERROR_INVALID_VALUE;
        return cuGraphAddMemcpyNode(node, graph, after, count, &given->copy.params, or_current(given->copy.context));
    case CU_NODE_MEMSET:
        return cuGraphAddMemsetNode(node, graph, after, count, &given->set.params, or_current(given->set.context));
    case CU_NODE_HOST:
        return cuGraphAddHostNode(node, graph, after, count, &given->host);
    case CU_NODE_GRAPH:
        return cuGraphAddChildGraphNode(node, graph, after, count, given->child);
    case CU_NODE_EMPTY:
        return cuGraphAddEmptyNode(node, graph, after, count);
    case CU_NODE_WAIT_EVENT:
        return cuGraphAddEventWaitNode(node, graph, after, count, given->event);
    case CU_NODE_EVENT_RECORD:
        return cuGraphAddEventRecordNode(node, graph, after, count, given->event);
    case CU_NODE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, after, count, &given->alloc);
    case CU_NODE_MEM_FREE:
        return cuGraphAddMemFreeNode(node, graph, after, count, given->free);
    case CU_NODE_CONDITIONAL:
        return add_conditional(node, graph, after, count, &given->conditional);
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *after, size_t count, void *params) {
    return cuGraphAddNode_v2(node, graph, after, NULL, count, params);
}

CUresult cuGraphDestroyNode(CUgraphNode node) {
    SIM_ENTER();
    if (!graph_node_is_valid(node))
        return CUDA_ERROR_INVALID_VALUE;
    const struct sim_graph *graph = graph_of_node(node);
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i]->kind == COMMAND_ALLOC_NODE || graph->node[i]->kind == COMMAND_FREE_NODE)
            return CUDA_ERROR_INVALID_VALUE;
    graph_remove(node);
    return CUDA_SUCCESS;
}
