/* The driver's objects in one process. Handles are pointers to these structures. The memory of the structures
 * is never released to the C library but reused, so that a stale handle is recognised by its `magic` and does not crash
 * the program. */
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#include <pthread.h>
#include <stdatomic.h>

#include "cuda_abi.h"
#include "machine.h"

#define SIM_RING 1024 /* commands a stream holds before submitting blocks */
#define SIM_MAX_PARAMS 8
#define SIM_MAX_PEERS 8 /* of a context (CUDA programming guide, "Peer-to-Peer Memory Access") */

enum {
    MAGIC_CONTEXT = 0x5c0417,
    MAGIC_STREAM,
    MAGIC_EVENT,
    MAGIC_MODULE,
    MAGIC_FUNCTION,
    MAGIC_GRAPH,
    MAGIC_EXEC,
    MAGIC_PHYSICAL,
    MAGIC_ARRAY,
    MAGIC_POOL,
    MAGIC_GREEN,
    MAGIC_USER_OBJECT /* the last one, which handles.c relies on */
};
enum { SIM_FRESH, SIM_READY, SIM_FORKED, SIM_ENDED };
enum { CLOSING_ALONE = 1, CLOSING_JOINED };

enum sim_command_kind {
    COMMAND_NONE,
    COMMAND_LAUNCH,
    COMMAND_COPY,
    COMMAND_SET,
    COMMAND_PREFETCH,
    COMMAND_EVENT,
    COMMAND_WAIT_EVENT,
    COMMAND_HOST,
    COMMAND_WAIT_VALUE,
    COMMAND_WRITE_VALUE,
    COMMAND_GRAPH,
    COMMAND_FREE,
    COMMAND_EMPTY,
    COMMAND_CHILD, /* from here on in graphs only */
    COMMAND_RECORD_NODE,
    COMMAND_WAIT_NODE,
    COMMAND_ALLOC_NODE,
    COMMAND_FREE_NODE,
};

/* One unit of work in a stream or a graph. */
struct sim_command {
    uint32_t kind, flags;
    uint64_t ticket; /* place among the commands of the context's legacy and blocking streams */
    union {
        struct {
            struct sim_function *function;
            uint32_t grid[3], block[3];
            uint64_t params[SIM_MAX_PARAMS];
        } launch;
        struct {
            void *dst;
            const void *src;
            size_t width, height, dst_pitch, src_pitch;
            int kind, is_host_only; /* enum sim_log_kind */
            void *staging;          /* freed afterwards */
        } copy;
        struct {
            void *dst;
            size_t width, height, pitch; /* width in elements */
            uint32_t value, element;
        } set;
        struct {
            struct sim_event *event;
            uint64_t generation;
        } event;
        struct {
            CUhostFn function;
            CUstreamCallback callback;
            void *data;
            CUstream handle;
        } host;
        struct {
            CUdeviceptr address;
            uint64_t value;
            uint32_t bytes, compare;
        } value;
        struct {
            CUdeviceptr address;
            size_t bytes;
            int to_device;
        } prefetch;
        struct {
            struct sim_graph_body *body;
        } graph;
        struct {
            struct sim_graph *graph; /* the node's own copy */
        } child;
        struct {
            struct sim_graph_memory *memory;
        } memory;
        struct {
            CUdeviceptr address;
        } free;
    };
};

struct sim_capture {
    uint64_t id;
    int mode, invalid, has_own_graph;
    pthread_t thread;
    struct sim_stream *origin, *members;
    struct sim_graph *graph;
    struct sim_capture *next; /* all captures of the process */
};

struct sim_stream {
    uint32_t magic, flags;
    struct sim_context *context;
    struct sim_stream *next; /* streams of the context */
    uint64_t id;
    int priority, is_legacy, is_blocking;
    CUstream handle; /* the program's handle: a default stream has a constant */

    pthread_mutex_t lock; /* submitting */
    struct sim_command *ring;
    _Atomic uint32_t sleeping; /* futex: the worker waits for work */
    int started;
    _Atomic int closing;
    _Atomic int holders; /* the worker and the closing thread: the last one retires the stream */
    pthread_t worker;

    int on_device;                               /* worker: has entered the device's time slices */
    uint64_t device_target;                      /* worker: device time at which the last command ends */
    uint64_t device_sampled_at, device_consumed; /* worker: time of the last sample, and device time then */
    uint64_t transferred; /* worker: when the last transfer ended; 0: another command came since */

    _Atomic(struct sim_capture *) capture; /* set with both locks held, cleared with sim.capture_lock */
    struct sim_stream *next_member;
    uint64_t captured; /* commands captured from this stream */
    int joined;        /* a later part of the capture waits for all of them */

    /* The fields below keep their values when the memory is used for another stream: a late waiter must find its
     * position passed. */
    _Atomic uint64_t tail;    /* submitted */
    _Atomic uint64_t head;    /* completed */
    _Atomic uint64_t wake_at; /* the smallest head that a thread waits for */
    _Atomic uint32_t done;    /* futex: changes when head has reached wake_at */
};

struct sim_event_progress {
    _Atomic uint64_t recorded; /* generation of the last record submitted */
    _Atomic uint64_t reached;  /* generation completed */
    _Atomic uint64_t time;     /* when that was */
    _Atomic uint32_t done;     /* futex, within the process */
};

struct sim_event {
    uint32_t magic, flags;
    struct sim_context *context;
    struct sim_event_progress *progress, own; /* `progress` is `own`, or in a file that other processes may open */
    int file;                                 /* of an interprocess event; -1: imported */
    _Atomic uint32_t waiters, pending;
    uint64_t capture_id; /* last recorded inside this capture; 0: outside */
    uint64_t captured;   /* by then captured from `stream` */
    struct sim_stream *stream;
};

struct sim_context {
    uint32_t magic, flags;
    uint64_t id;
    int device, is_primary;
    struct sim_green *green;     /* NULL: not the context of a green context */
    struct sim_context *primary; /* of the device, if this is the context of a green context */
    struct sim_context *greens;  /* of a primary context: the contexts of its green contexts */
    pthread_t holder;            /* of a green context: the thread in which the context is current */
    int holds;                   /* how often it is on that thread's stack */
    pthread_mutex_t lock;        /* list of streams */
    struct sim_stream *streams, *legacy;
    _Atomic uint64_t order; /* tickets */
    _Atomic uint32_t blocking_captures;
    _Atomic int error;             /* sticky */
    uint64_t peers[SIM_MAX_PEERS]; /* contexts whose memory its launches may use, by id; 0: a free place */
    struct sim_context *next;
};

struct sim_function {
    uint32_t magic, count;
    struct sim_module *module;
    const struct sim_builtin *builtin; /* NULL: code that cannot be simulated */
    char name[128];
    uint8_t size[SIM_MAX_PARAMS];
    uint16_t offset[SIM_MAX_PARAMS];
    struct sim_function *next;
};

struct sim_module {
    uint32_t magic;
    struct sim_context *context; /* NULL: a library, usable in every context */
    int is_charged;              /* it takes module_memory, a library in each context */
    struct sim_function *functions;
    struct sim_global *globals;
    struct sim_module *next;
};

#define SIM_STACK 64
#define SIM_OWN 4

/* State that a thread needs rarely; made when needed, freed when the thread ends. */
struct sim_thread_more {
    struct sim_context *stack[SIM_STACK];
    struct {
        uint64_t context_id;
        struct sim_stream *stream;
    } own[SIM_OWN]; /* per-thread default streams */
};

/* In static thread-local storage, of which a library loaded at run time gets little: keep it small. */
struct sim_thread {
    struct sim_context *current;
    struct sim_thread_more *more;
    int depth, capture_mode, in_callback;
};

struct sim_state {
    _Atomic int state;
    _Atomic uint32_t waits; /* threads of the program that wait inside a call */
    pthread_t ending;       /* the thread that ends the process, from SIM_ENDED on */
    pthread_mutex_t lock;   /* initialisation, contexts, modules */
    struct machine *machine;
    int slot;
    struct sim_params params;
    int visible[SIM_MAX_DEVICES], visible_count; /* CUDA_VISIBLE_DEVICES */
    struct sim_context *contexts;
    struct {
        struct sim_context *context;
        int references;
        unsigned flags;
    } primary[SIM_MAX_DEVICES];
    _Atomic uint64_t next_id;
    pthread_mutex_t capture_lock;
    struct sim_capture *captures;
    _Atomic uint32_t capture_count;
};

extern struct sim_state sim;
extern __thread struct sim_thread sim_thread __attribute__((tls_model("initial-exec")));

/* state.c */
CUresult sim_ready(void); /* the driver is initialised, and this thread may call it */
void sim_end(void);       /* the process ends */
/* Convert an ordinal of the program to the device of the simulated machine, and back. */
CUresult device_of(CUdevice ordinal, int *index);
CUdevice ordinal_of(int index);

/* handles.c: memory for an object: zeroed when new, as it was left when reused. */
void *object_get(uint32_t magic, size_t size);
void object_put(void *object, uint32_t magic);

/* Nodes, each of which is named by its command. */
struct sim_nodes {
    struct sim_command **node;
    size_t count, room;
};

/* The nodes of a graph, in an order that respects all edges. */
struct sim_graph {
    uint32_t magic;
    struct sim_command **node;
    size_t count, room;
    struct sim_nodes tip; /* the nodes on which the next captured node depends */
    struct sim_reference *user_objects;
};

/* current.c */
CUresult context_current(struct sim_context **out); /* the calling thread's, if usable */
int context_is_valid(const struct sim_context *context);
void context_fail(struct sim_context *context, CUresult error);

/* context.c */
CUresult context_retain(int device, struct sim_context **out); /* the device's primary context */
CUresult context_release(int device, int reset);
CUresult context_new(int device, unsigned flags, struct sim_context **out);

/* synchronize.c */
CUresult context_synchronize(struct sim_context *context);
struct sim_points *context_points(struct sim_context *context); /* all that was submitted; NULL: nothing */
void points_await(void *points);                                /* and free them */

/* Return the context whose memory and functions are those of this one. */
static inline struct sim_context *context_of_memory(struct sim_context *context) {
    return context->primary ? context->primary : context;
}

/* peers.c */
void peers_discard(const struct sim_context *ended); /* sim.lock is held */

/* stream.c */
CUresult stream_open(struct sim_context *context, unsigned flags, int priority, struct sim_stream **out);
void stream_close(struct sim_stream *stream, int join);
void stream_let_go(struct sim_stream *stream);

/* thread.c */
struct sim_thread_more *thread_more(void); /* NULL: out of memory */
/* A context enters the calling thread's stack, or leaves the stack. */
CUresult context_hold(struct sim_context *context);
void context_let_go(struct sim_context *context);
struct sim_stream *stream_own(struct sim_context *context);
CUresult stream_resolve(CUstream handle, CUstream fallback, struct sim_stream **out);

/* engine.c */
CUresult engine_begin(struct sim_stream *stream,
                      struct sim_command **out);                /* a place in the queue or the graph; locks */
CUresult engine_commit(struct sim_stream *stream);              /* submits what was put there; unlocks */
void engine_wait(struct sim_stream *stream, uint64_t position); /* waits until `position` commands are complete */
CUresult engine_synchronize(struct sim_stream *stream);
int engine_is_idle(struct sim_stream *stream);

/* execute.c */
void execute(struct sim_stream *stream, struct sim_command *command);
void execute_leave_device(struct sim_stream *stream);

/* capture_check.c */
struct sim_capture *capture_find(uint64_t id); /* sim.capture_lock is held; NULL: the capture has ended */
CUresult capture_check_legacy(struct sim_context *context);
CUresult capture_check_unsafe(void);
CUresult capture_check_context(struct sim_context *context);
/* returns 900 and invalidates the capture if the stream is capturing */
CUresult capture_refuse(struct sim_stream *stream);
/* returns 907 and invalidates the capture if the event was last recorded in one */
CUresult capture_check_event(const struct sim_event *event);

/* capture.c */
CUresult capture_append(struct sim_stream *stream,
                        struct sim_command **out); /* keeps sim.capture_lock if it succeeds */
void capture_discard(struct sim_stream *stream);   /* the stream is being destroyed */
CUresult capture_record(struct sim_event *event, struct sim_stream *stream);
CUresult capture_wait(struct sim_event *event, struct sim_stream *stream);

/* array.c: rows of `width` bytes, `pitch` apart, layers of `rows` */
struct sim_memory_2d {
    CUdeviceptr address;
    size_t width, rows, pitch;
};
int array_memory(CUarray array, struct sim_memory_2d *out); /* 0: not an array */

/* graph.c */
struct sim_graph *graph_new(void);
int graph_is_valid(const struct sim_graph *graph);
void graph_free(struct sim_graph *graph);
void graph_drop_node(struct sim_command *node);            /* frees the objects of the command */
struct sim_command *graph_append(struct sim_graph *graph); /* a node that depends on the tip, and is the tip now */
void graph_remove_last(struct sim_graph *graph);           /* undoes graph_append of a node without objects */
const struct sim_nodes *graph_dependencies(const struct sim_command *node);
CUresult graph_set_dependencies(struct sim_graph *graph, struct sim_command *node, const CUgraphNode *after,
                                size_t count);
/* Replace the nodes on which the next captured node depends, or add to them. */
CUresult graph_set_tip(struct sim_graph *graph, const CUgraphNode *nodes, size_t count, int adds);

/* user_object.c: references to objects of the program, which graphs own */
int references_copy(struct sim_reference **to, struct sim_reference *const *from); /* -1: out of memory */
void references_drop(struct sim_reference **list);

/* graph_body.c: what a launch executes, unchanged by later changes of the executable graph */
struct sim_graph_body {
    _Atomic uint32_t references;
    struct sim_command *node; /* with those of child graphs in their places */
    size_t count;
    struct sim_reference *user_objects;
};
struct sim_graph_body *graph_body(const struct sim_graph *graph); /* NULL: out of memory */
void graph_body_release(struct sim_graph_body *body);
struct sim_graph *graph_of_body(const struct sim_graph_body *body);
struct sim_graph *graph_copy(const struct sim_graph *graph);
CUresult graph_prepare(const struct sim_graph_body *body);              /* memory for its allocations */
void graph_end_launch(const struct sim_graph_body *body, size_t count); /* of the first `count` nodes */

/* graph_memory.c: the memory of allocation nodes */
CUresult graph_memory_new(int device, uint64_t bytes, struct sim_graph_memory **out);
struct sim_graph_memory *graph_memory_at(CUdeviceptr address); /* with a reference; NULL: none begins there */
int graph_memory_covers(CUdeviceptr address, uint64_t bytes);
CUdeviceptr graph_memory_address(const struct sim_graph_memory *memory, uint64_t *bytes, int *device);
void graph_memory_hold(struct sim_graph_memory *memory);
void graph_memory_drop(struct sim_graph_memory *memory);
CUresult graph_memory_prepare(struct sim_graph_memory *memory); /* before a launch; undone by graph_memory_launched */
void graph_memory_launched(struct sim_graph_memory *memory);
void graph_memory_map(struct sim_graph_memory *memory);
int graph_memory_unmap(struct sim_graph_memory *memory); /* 0: it was not mapped */

/* api_event.c */
CUresult event_submit(struct sim_event *event, struct sim_stream *stream); /* records it outside of captures */

/* event.c; file -1: an event of this process only */
CUresult event_new(struct sim_context *context, unsigned flags, int file, CUevent *out);
CUresult event_new_interprocess(struct sim_context *context, unsigned flags, CUevent *out);
CUresult event_import(struct sim_context *context, int file, CUevent *out);
void event_complete(struct sim_event *event, uint64_t generation);
void event_await(struct sim_event *event, uint64_t generation);
void event_await_pinned(struct sim_event *event, uint64_t generation); /* leaves the pin */
void event_unpin(struct sim_event *event);

/* Return whether the handle can be one of the driver's objects; its magic then decides. */
static inline int sim_is_object(const void *handle) {
    return (uintptr_t)handle >= 4096 && !((uintptr_t)handle & 15);
}

#define SIM_ENTER()                                                                                                    \
    do {                                                                                                               \
        CUresult ready_ = sim_ready();                                                                                 \
        if (ready_)                                                                                                    \
            return ready_;                                                                                             \
    } while (0)

#endif
