/* Executable graphs: what their launches execute, and changes of that. Launches in flight keep their nodes. */
#include "base/exports.h"
#include "graph/graph.h"

static pthread_mutex_t bodies_lock = PTHREAD_MUTEX_INITIALIZER;

int exec_is_valid(CUgraphExec exec) {
    return sim_is_object(exec) && exec->magic == MAGIC_EXEC;
}

struct sim_graph_body *exec_body(struct sim_graph_exec *exec) {
    pthread_mutex_lock(&bodies_lock);
    struct sim_graph_body *body = exec->body;
    atomic_fetch_add(&body->references, 1);
    pthread_mutex_unlock(&bodies_lock);
    return body;
}

/* Copies must be linear, and a set keeps its rows. Source: documentation of cuGraphExecMemcpyNodeSetParams and
 * cuGraphExecMemsetNodeSetParams. */
static int are_exchangeable(const struct sim_command *old, const struct sim_command *new) {
    if (old->kind != new->kind || old->kind == COMMAND_LAUNCH)
        return old->kind == new->kind;
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

/* Exchange the body, and release the one that is no longer used. */
int exec_update(struct sim_graph_exec *exec, struct sim_graph_body *body) {
    pthread_mutex_lock(&bodies_lock);
    int result = compare(exec->body, body);
    struct sim_graph_body *unused = result ? body : exec->body;
    if (!result)
        exec->body = body;
    pthread_mutex_unlock(&bodies_lock);
    graph_body_release(unused);
    return result;
}

CUresult exec_change_node(CUgraphExec exec, CUgraphNode node, const struct sim_command *command) {
    if (!exec_is_valid(exec))
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

/* The nodes of a child graph are in the place of the child. */
CUresult exec_change_child(CUgraphExec exec, CUgraphNode node, const struct sim_graph *child) {
    struct sim_graph_body *old = graph_body(node->child.graph), *new = graph_body(child), *unused = NULL;
    CUresult result = !old || !new ? CUDA_ERROR_OUT_OF_MEMORY : compare(old, new) ? CUDA_ERROR_INVALID_VALUE : 0;
    if (!result) {
        pthread_mutex_lock(&bodies_lock);
        unused = graph_body_copy(exec->body);
        result = unused ? graph_body_replace(unused, old, new) : CUDA_ERROR_OUT_OF_MEMORY;
        if (!result) {
            struct sim_graph_body *changed = unused;
            unused = exec->body;
            exec->body = changed;
        }
        pthread_mutex_unlock(&bodies_lock);
    }
    struct sim_graph_body *done[] = {old, new, unused};
    for (int i = 0; i < 3; i++)
        if (done[i])
            graph_body_release(done[i]);
    return result;
}
