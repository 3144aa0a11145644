/* Execution of one command: host functions, waits for values, writes of values, and the nodes of a graph in sequence. */
#include "base/waiting.h"
#include "context/context.h"
#include "memory/alloc.h"
#include "graph/graph.h"
#include "work/execute.h"

#define POLL_NS 20000

static void host(struct sim_stream *stream, struct sim_command *command) {
    execute_leave_device(stream);
    sim_thread.in_callback = 1;
    if (command->host.function)
        command->host.function(command->host.data);
    else
        command->host.callback(command->host.handle, atomic_load(&stream->context->error), command->host.data);
    sim_thread.in_callback = 0;
}

static int value_reached(const struct sim_command *command) {
    uint64_t mask = command->value.bytes == 4 ? UINT32_MAX : UINT64_MAX, wanted = command->value.value & mask;
    uint64_t seen = command->value.bytes == 4 ? __atomic_load_n((uint32_t *)command->value.address, __ATOMIC_ACQUIRE)
                                              : __atomic_load_n((uint64_t *)command->value.address, __ATOMIC_ACQUIRE);
    switch (command->value.compare) {
    case CU_WAIT_GEQ:
        return command->value.bytes == 4 ? (int32_t)(seen - wanted) >= 0 : (int64_t)(seen - wanted) >= 0;
    case CU_WAIT_EQ:
        return seen == wanted;
    case CU_WAIT_AND:
        return (seen & wanted) != 0;
    default:
        return (~(seen | wanted) & mask) != 0;
    }
}

static void value(struct sim_stream *stream, struct sim_command *command) {
    struct sim_alloc *alloc = alloc_pin_range(command->value.address, command->value.bytes);
    if (!alloc) {
        context_fail(stream->context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    if (command->kind == COMMAND_WAIT_VALUE) {
        while (!value_reached(command)) { /* a waiting channel leaves the device to other processes */
            execute_leave_device(stream);
            sim_sleep_until(sim_now() + POLL_NS);
        }
    } else if (command->value.bytes == 4) {
        __atomic_store_n((uint32_t *)command->value.address, (uint32_t)command->value.value, __ATOMIC_RELEASE);
    } else {
        __atomic_store_n((uint64_t *)command->value.address, command->value.value, __ATOMIC_RELEASE);
    }
    alloc_unpin(alloc);
}

static void free_memory(CUdeviceptr address) {
    struct sim_graph_memory *memory = graph_memory_at(address);
    if (memory) {
        graph_memory_unmap(memory);
        graph_memory_drop(memory);
    } else {
        alloc_free(address, 1u << ALLOC_PLAIN);
    }
}

static void execute_conditional(struct sim_stream *stream, const struct sim_conditional *conditional);

/* Execute a node of a graph, which is a command or an operation that exists only in graphs. */
static void execute_node(struct sim_stream *stream, const struct sim_command *node) {
    struct sim_event *event = node->event.event;
    struct sim_command command;
    switch (node->kind) {
    case COMMAND_EMPTY:
        break;
    case COMMAND_RECORD_NODE:
        atomic_fetch_add(&event->pending, 1);
        event_complete(event, atomic_load(&event->progress->reached) + 1);
        break;
    case COMMAND_WAIT_NODE:
        execute_leave_device(stream);
        atomic_fetch_add(&event->pending, 1);
        event_await(event, atomic_load(&event->progress->recorded));
        break;
    case COMMAND_ALLOC_NODE:
        graph_memory_map(node->memory.memory);
        break;
    case COMMAND_FREE_NODE:
        graph_memory_unmap(node->memory.memory);
        break;
    case COMMAND_CONDITIONAL:
        execute_conditional(stream, node->conditional.part);
        break;
    default:
        command = *node;
        execute(stream, &command);
    }
}

static void execute_nodes(struct sim_stream *stream, const struct sim_graph_body *body) {
    for (size_t i = 0; i < body->count; i++)
        execute_node(stream, &body->node[i]);
}

/* A launch that fails sets no condition, so an error ends a loop. */
static void execute_conditional(struct sim_stream *stream, const struct sim_conditional *conditional) {
    const struct sim_graph_body *body;
    while ((body = conditional_choose(conditional)) && !atomic_load(&stream->context->error)) {
        execute_nodes(stream, body);
        if (conditional->type != CU_COND_WHILE)
            break;
    }
}

static void execute_graph(struct sim_stream *stream, struct sim_graph_body *body) {
    conditionals_begin_launch(body);
    execute_nodes(stream, body);
    graph_end_launch(body, body->count);
    graph_body_release(body);
}

void execute(struct sim_stream *stream, struct sim_command *command) {
    switch (command->kind) {
    case COMMAND_LAUNCH:
        if (!atomic_load_explicit(&stream->context->error, memory_order_relaxed))
            execute_launch(stream, command);
        break;
    case COMMAND_COPY:
        execute_copy(stream, command);
        break;
    case COMMAND_SET:
        execute_set(stream, command);
        break;
    case COMMAND_PREFETCH:
        execute_prefetch(stream, command);
        break;
    case COMMAND_EVENT:
        event_complete(command->event.event, command->event.generation);
        break;
    case COMMAND_WAIT_EVENT:
        if (atomic_load(&command->event.event->progress->reached) < command->event.generation)
            execute_leave_device(stream);
        event_await(command->event.event, command->event.generation);
        break;
    case COMMAND_HOST:
        host(stream, command);
        break;
    case COMMAND_WAIT_VALUE:
    case COMMAND_WRITE_VALUE:
        value(stream, command);
        break;
    case COMMAND_GRAPH:
        execute_graph(stream, command->graph.body);
        break;
    case COMMAND_FREE:
        free_memory(command->free.address);
        break;
    default:
        break;
    }
}
