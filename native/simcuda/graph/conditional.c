/* Conditional nodes of graphs: conditions, which programs name by handles, and bodies that run by the value of a
 * condition. A body is a graph of the node, and in a body of a graph the body of that graph. Source: documentation of
 * cuGraphConditionalHandleCreate and CUDA_CONDITIONAL_NODE_PARAMS. */
#include <stdlib.h>

#include "base/sim.h"
#include "graph/graph.h"

struct sim_condition {
    uint32_t magic, flags;
    struct sim_context *context;
    uint32_t default_value;
    _Atomic uint32_t value;
    _Atomic uint32_t references; /* of the graph and of nodes */
    struct sim_condition *next;  /* of the graph */
};

static struct sim_condition *condition_of(CUgraphConditionalHandle handle) {
    struct sim_condition *condition = (struct sim_condition *)(uintptr_t)handle;
    return sim_is_object(condition) && condition->magic == MAGIC_CONDITION ? condition : NULL;
}

static void release(struct sim_condition *condition) {
    if (atomic_fetch_sub(&condition->references, 1) == 1)
        object_put(condition, MAGIC_CONDITION);
}

void conditions_drop(struct sim_graph *graph) {
    for (struct sim_condition *each = graph->conditions, *next; each; each = next) {
        next = each->next;
        release(each);
    }
    graph->conditions = NULL;
}

int condition_set(CUgraphConditionalHandle handle, uint32_t value) {
    struct sim_condition *condition = condition_of(handle);
    if (condition)
        atomic_store(&condition->value, value);
    return condition != NULL;
}

CUresult condition_new(struct sim_graph *graph, struct sim_context *context, uint32_t value, uint32_t flags,
                       CUgraphConditionalHandle *out) {
    struct sim_condition *condition = object_get(MAGIC_CONDITION, sizeof *condition);
    if (!condition)
        return CUDA_ERROR_OUT_OF_MEMORY;
    condition->flags = flags;
    condition->context = context;
    condition->default_value = value;
    atomic_store(&condition->value, 0);
    atomic_store(&condition->references, 1);
    condition->next = graph->conditions;
    graph->conditions = condition;
    condition->magic = MAGIC_CONDITION;
    *out = (uintptr_t)condition;
    return CUDA_SUCCESS;
}

static CUresult make(struct sim_condition *condition, unsigned type, unsigned size, struct sim_conditional **out) {
    struct sim_conditional *made = calloc(1, sizeof *made);
    if (!made || !(made->graph = calloc(size, sizeof *made->graph)) ||
        !(made->body = calloc(size, sizeof *made->body))) {
        if (made)
            free(made->graph);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    atomic_fetch_add(&condition->references, 1);
    made->condition = condition;
    made->type = type;
    made->size = size;
    *out = made;
    return CUDA_SUCCESS;
}

CUresult conditional_new(const CUDA_CONDITIONAL_NODE_PARAMS *params, struct sim_conditional **out) {
    static const unsigned max_size[] = {[CU_COND_IF] = 2, [CU_COND_WHILE] = 1, [CU_COND_SWITCH] = 1 << 16};
    struct sim_condition *condition = condition_of(params->handle);
    unsigned type = (unsigned)params->type;
    if (!condition || type > CU_COND_SWITCH || !params->size || params->size > max_size[type] ||
        (params->context ? params->context : sim_thread.current) != condition->context)
        return CUDA_ERROR_INVALID_VALUE;
    return make(condition, type, params->size, out);
}

CUresult conditional_copy(const struct sim_conditional *other, struct sim_conditional **out) {
    return make(other->condition, other->type, other->size, out);
}

void conditional_free(struct sim_conditional *conditional) {
    release(conditional->condition);
    free(conditional->graph);
    free(conditional->body);
    free(conditional);
}

/* Memory nodes, host functions and events are not allowed in bodies. */
static int fits_body(const struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++) {
        const struct sim_command *node = graph->node[i];
        if (node->kind == COMMAND_CHILD && !fits_body(node->child.graph))
            return 0;
        if (node->kind != COMMAND_LAUNCH && node->kind != COMMAND_COPY && node->kind != COMMAND_SET &&
            node->kind != COMMAND_EMPTY && node->kind != COMMAND_CHILD && node->kind != COMMAND_CONDITIONAL)
            return 0;
    }
    return conditionals_are_valid(graph);
}

int conditionals_are_valid(const struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i]->kind == COMMAND_CONDITIONAL)
            for (unsigned body = 0; body < graph->node[i]->conditional.part->size; body++)
                if (!fits_body(graph->node[i]->conditional.part->graph[body]))
                    return 0;
    return 1;
}

int graph_has_conditional(const struct sim_graph *graph) {
    for (size_t i = 0; i < graph->count; i++)
        if (graph->node[i]->kind == COMMAND_CONDITIONAL)
            return 1;
    return 0;
}

/* Without the flag, the value at the beginning of a launch is undefined: here the last one, and 0 at first. */
void conditionals_begin_launch(const struct sim_graph_body *body) {
    for (size_t i = 0; i < body->count; i++) {
        if (body->node[i].kind != COMMAND_CONDITIONAL)
            continue;
        struct sim_conditional *part = body->node[i].conditional.part;
        if (part->condition->flags & CU_COND_ASSIGN_DEFAULT)
            atomic_store(&part->condition->value, part->condition->default_value);
        for (unsigned each = 0; each < part->size; each++)
            conditionals_begin_launch(part->body[each]);
    }
}

const struct sim_graph_body *conditional_choose(const struct sim_conditional *conditional) {
    uint32_t value = atomic_load(&conditional->condition->value);
    unsigned index = conditional->type == CU_COND_SWITCH ? value : !value;
    return index < conditional->size ? conditional->body[index] : NULL;
}
