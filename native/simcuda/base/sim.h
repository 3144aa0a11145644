/* The driver's objects in one process. Handles are pointers to these structures. The memory of the structures
 * is never released to the C library but reused, so that a stale handle is recognised by its `magic` and does not crash
 * the program.
 *
 * Folders, from the lowest: base, machine, context, memory, graph, work, module, checkpoint, api/memory, api/work, api. A file
 * calls and includes files of its own folder and of lower folders. */
#ifndef SIMCUDA_SIM_H
#define SIMCUDA_SIM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/cuda_abi.h"
#include "base/params.h"

#define SIM_RING 1024 /* commands a stream holds before submitting blocks */
#define SIM_MAX_PARAMS 8
#define SIM_MAX_NAME 1024      /* of a function or variable, with its final zero */
#define SIM_MAX_DUMP_TEXT 1024 /* of a setting of core dumps, with its final zero */
#define SIM_MAX_PEERS 8        /* of a context (CUDA programming guide, "Peer-to-Peer Memory Access") */

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
    MAGIC_CONDITION,
    MAGIC_NODE,
    MAGIC_MULTICAST,
    MAGIC_USER_OBJECT /* the last one, which handles.c relies on */
};
/* SIM_LOCKED: calls wait until the process is unlocked (checkpoint/service.c). */
enum { SIM_FRESH, SIM_READY, SIM_LOCKED, SIM_FORKED, SIM_ENDED };
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
    COMMAND_CONDITIONAL,
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
            size_t width, height, depth, dst_pitch, src_pitch;
            size_t dst_layer, src_layer; /* bytes from one layer to the next */
            int kind, is_host_only;      /* enum sim_log_kind */
            void *staging;               /* freed afterwards */
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
            struct sim_conditional *part;
        } conditional;
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
    uint64_t captured;   /* by then captured from the stream with that id */
    uint64_t stream_id;
};

/* Settings of core dumps, by the numbers of CUcoredumpSettings: switches, then the file and the pipe. */
struct sim_dump_settings {
    unsigned char is_on[5];
    char text[2][SIM_MAX_DUMP_TEXT];
    int flags;
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
    struct sim_dump_settings dump;
    struct sim_context *next;
};

struct sim_function {
    uint32_t magic, count;
    struct sim_module *module;
    const struct sim_builtin *builtin; /* NULL: code that cannot be simulated */
    char name[SIM_MAX_NAME];
    uint8_t size[SIM_MAX_PARAMS];
    uint16_t offset[SIM_MAX_PARAMS];
    struct sim_function *next;
};

struct sim_module {
    uint32_t magic;
    struct sim_context *context;      /* NULL: a library, usable in every context */
    _Atomic(struct sim_code *) codes; /* in contexts; module_code.c */
    _Atomic int launch_failed;        /* for lack of room; of a library */
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
    _Atomic uint32_t state; /* futex while SIM_LOCKED */
    _Atomic uint32_t waits; /* threads of the program that wait inside a call */
    pthread_t ending;       /* the thread that ends the process, from SIM_ENDED on */
    pthread_mutex_t lock;   /* initialisation, contexts, modules */
    struct machine *machine;
    int slot;
    struct sim_params params;
    _Atomic int place[SIM_MAX_DEVICES]; /* by device of the process: the device of the machine on which it lies */
    int visible[SIM_MAX_DEVICES], visible_count; /* visible_devices.c */
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
/* Begin to hold the calls of the program. -1: the process ends. Let them go on. */
int sim_lock_calls(void);
void sim_unlock_calls(void);
/* Convert an ordinal of the program to the device of the simulated machine, and back. */
CUresult device_of(CUdevice ordinal, int *index);
CUdevice ordinal_of(int index);
/* Convert a device of the process to the device of the machine on which it lies, and back. The two differ after a
 * restore on another device (checkpoint/device_map.c). */
int device_place(int index);
int device_at(int place);

/* handles.c: memory for an object: zeroed when new, as it was left when reused. */
void *object_get(uint32_t magic, size_t size);
void object_put(void *object, uint32_t magic);

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
