/* Basis of every folder of the shim: the process-wide state, the page, time, the log, descriptors. No CUDA call, no
 * protocol.
 *
 * Folders, from the lowest: base, driver, channel, memory/account, memory/transfers, memory/freed, memory/swap/host,
 * memory/swap, memory, gate, coordinator, devices, agent, hooks, wrappers. A file calls its own folder and lower ones;
 * tests/native/test_layering.py checks that. The main header of a folder is for the folders above.
 *
 * Threads: program threads run the hooks. One agent thread (agent/agent.c) does all that needs the coordinator or the
 * turn lock: messages, turns, drains. A signal handler (gate/sigint.c) uses atomics and a futex only. The main
 * thread of a Python program runs Python's signal handlers while it waits (gate/python.c); a helper thread tries the
 * interpreter lock for it. The child of a fork starts from the uninitialised state (agent/start.c).
 *
 * Locks, in the order in which a thread takes them: a thread that holds a lock waits for a lower line only.
 * tests/native/test_lock_order.py checks that.
 *
 * - start_lock      agent/start.c
 * - freeing         memory/freed/deferred_free.c
 * - residency_lock  memory/transfers/transfer_streams.c
 * - lock            memory/mode_unified.c
 * - lock            memory/advice.c (one for each of two lists)
 * - queries         driver/captures.c
 * - lock            gate/streams.c
 * - lock            gate/throttle.c
 * - lock            gate/function_times.c
 * - lock            gate/threads.c
 * - lock            memory/graph_memory.c
 * - lock            memory/swap/host/parallel_copy.c
 * - lock            memory/freed/freed_list.c
 * - lock            memory/account/ledger.c (one for each shard)
 * - lock            memory/account/pool_figures.c
 * - account_lock    memory/account/account.c
 * - lock            memory/account/refusal.c
 * - lock            driver/unhooked.c
 * - lock            gate/sigint.c (a spin lock)
 * - lock            base/owned_fds.c
 *
 * A thread holds none of them at the gate or in a driver call that may wait for the device. Exceptions are the
 * recording of an event, and `freeing` and residency_lock while memory is freed or moves. */
#ifndef GPUSHARE_BASE_H
#define GPUSHARE_BASE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/page.h"

#define GPUSHARE_SHIM_VERSION "0.1.0"

/* Each header of the shim does this for its declarations, so that the compiler addresses them directly. */
#pragma GCC visibility push(hidden)

#define EXPORT __attribute__((visibility("default")))
#define COLD __attribute__((cold, noinline))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

#define NS_PER_MS 1000000ull
#define NEVER UINT64_MAX
#define MAX_DEVICES 64

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* --- log.c --- */

enum level { LOG_ERROR, LOG_INFO, LOG_DEBUG };
/* A size in the form that users read, for a log line: "700 MiB", "1.5 GiB". Valid until the end of the full
 * expression. */
struct size_text {
    char text[24];
};
struct size_text size_text(uint64_t bytes);
void log_message(enum level level, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool log_enabled(enum level level);
void log_start(void); /* reads the environment, at the first call */
/* Log once per place in the source. */
#define log_once(level, ...)                                                                                           \
    do {                                                                                                               \
        static atomic_flag is_logged = ATOMIC_FLAG_INIT;                                                               \
        if (!atomic_flag_test_and_set(&is_logged))                                                                     \
            log_message(level, __VA_ARGS__);                                                                           \
    } while (0)

/* --- futex.c --- */

uint64_t now_ns(void);               /* CLOCK_MONOTONIC */
void futex_wake_all(uint32_t *word); /* within the process */
void futex_wait(uint32_t *word, uint32_t value, uint64_t nanoseconds);

/* --- helper_thread.c --- */

bool start_helper_thread(void *(*run)(void *)); /* a detached thread of the shim in the program, all signals blocked */

/* --- owned_fds.c: descriptors that the program may close --- */

int fd_own(int number);      /* the shim owns it from now on; returns it */
bool fd_is_ours(int number); /* the number still refers to what it did when the shim took it */
void fd_close(int number);   /* if the number is still the shim's */
bool all_fds_are_ours(void);
void fds_close_all(void);
void fds_after_fork(void); /* closes them in the child */

/* --- state.c --- */

enum shim_state {
    SHIM_UNINITIALISED, /* no CUDA call yet: nothing exists, and the gate is closed so that the first call initialises */
    SHIM_ACTIVE,
    SHIM_DISABLED, /* the shim cannot work: the gate is open for ever */
};

enum link {
    LINK_DISCONNECTED,
    LINK_CONNECTING, /* hello has been sent */
    LINK_CONNECTED,
};

struct memory_mode; /* memory/account/mode.h */

struct environment {
    char label[4100], quota[4100]; /* up to 1024 characters of UTF-8 */
    uint64_t pinned;               /* bytes of host memory that may be pinned for evicted memory */
    char sockets[2][512];
    int socket_count;
    bool socket_in_tmp; /* the second socket is in a folder that another user could have made */
};

struct device {
    char uuid[48];
    char name[128];
    uint64_t memory;
};

struct shim {
    uint32_t gate;              /* the gate word; waiting threads sleep on it */
    bool fences;                /* membarrier is refused: every call takes the slow path with a full fence */
    struct gpushare_page *page; /* never NULL: a static page until the shim is active; see the_page, set_page */
    _Atomic uint32_t state;
    _Atomic uint32_t link;
    _Atomic uint32_t phase;            /* of the turn, GPUSHARE_OUT …; written by the agent */
    _Atomic uint32_t waiting;          /* threads at the gate */
    _Atomic bool contended;            /* the permit flag CONTENDED */
    _Atomic uint64_t hibernated_bytes; /* that have left the device with the process; 0: it is not hibernated */
    _Atomic bool without_coordinator;  /* turns go by the rule without a coordinator */
    int wake_receiver, wake_sender;    /* a pair of sockets: a byte wakes the agent */
    int page_fd;
    int client_fd;
    struct gpushare_client *client; /* changed under account_lock */
    char client_id[132], token[1028];
    struct device devices[MAX_DEVICES];
    int device_count;
    bool simulated;
    _Atomic bool shares_memory;     /* other processes, devices or interfaces may use memory of the program */
    _Atomic bool uses_managed;      /* the program has asked for unified memory */
    _Atomic uint32_t room_refusals; /* of the coordinator: each ends the waits at the gate with an error */
    uint32_t checkpointed;  /* 1: the driver has checkpointed this process, or does so now; threads sleep on it */
    _Atomic bool is_ending; /* the process ends, and the driver is about to end or has ended */
    bool pages_unified;     /* unified memory moves by pages, so that it may exceed the device */
    const struct memory_mode *mode;
    struct environment environment;
};

extern struct shim shim;
extern struct gpushare_page no_page; /* the page of a process without shared memory */

void shim_disable(const char *reason); /* every call passes from now on; logs the reason unless it is NULL */
void state_after_fork(void);

static inline struct gpushare_page *the_page(void) {
    return __atomic_load_n(&shim.page, __ATOMIC_RELAXED); /* an access through the address is ordered after this load */
}
static inline void set_page(struct gpushare_page *page) {
    __atomic_store_n(&shim.page, page, __ATOMIC_RELEASE);
}

/* The page is shared memory laid out by page.h in plain types: these give each access its atomicity. */
#define PAGE_LOAD(field) __atomic_load_n(&(field), __ATOMIC_RELAXED)
#define PAGE_STORE(field, value) __atomic_store_n(&(field), (value), __ATOMIC_RELAXED)
#define PAGE_ADD(field, value) __atomic_fetch_add(&(field), (value), __ATOMIC_RELAXED)

/* The gate word: the gate's state in the low bits, and above them the number of the opening. Only the agent writes the
 * word, except for THROTTLED, which gate/throttle.c sets in the word of an open gate, and except for a
 * shim that becomes inactive (base/state.c). */
#define GATE_STATE 3u
#define GATE_OPENING_SHIFT 2
#define GATE_THROTTLED 0x80000000u
enum { GATE_CLOSED, GATE_OPEN, GATE_STEP }; /* as AGENT_GATE_… in agent/agent_step.h */

static inline uint32_t gate_word(void) {
    return __atomic_load_n(&shim.gate, __ATOMIC_ACQUIRE);
}
static inline bool is_open(uint32_t word) {
    return (word & GATE_STATE) != GATE_CLOSED; /* a step counts as open */
}
static inline bool is_step(uint32_t word) {
    return (word & GATE_STATE) == GATE_STEP;
}
static inline uint32_t without_throttle(uint32_t word) {
    return word & ~GATE_THROTTLED;
}
/* Return true if the driver has checkpointed this process, so that every call of the driver waits. */
static inline bool is_hibernated(void) {
    return atomic_load(&shim.hibernated_bytes) != 0;
}
/* Return true if the client counts as offline. A guest on a device that its owner has claimed counts as well. */
static inline bool is_offline(void) {
    return PAGE_LOAD(the_page()->control.quota_flags) & (4 | 64);
}
/* Return true if this process is in a turn, so that its work may be on the device. */
static inline bool is_running(void) {
    return atomic_load(&shim.phase) != GPUSHARE_OUT;
}

/* --- wakeup.c: waking the agent --- */

bool wakeup_open(void);
void agent_wake(void);   /* any thread */
void wakeup_clear(void); /* agent: take the bytes of the threads that have woken it */

#pragma GCC visibility pop

#endif
