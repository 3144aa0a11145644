/* The page: the shared memory between the coordinator and one process, for levels (events go over the socket).
 *
 * This header is the only definition of the layout. C includes it; Python hands the part between "layout begins" and
 * "layout ends" to cffi. It is append-only: a field is never moved, resized or reused, new ones go at the end of their
 * block's reserve, and `version` counts such additions, so that either side works with an older peer.
 *
 * A process creates its page as a memfd of GPUSHARE_PAGE_BYTES, sealed against growing, shrinking and further seals,
 * and passes it to the coordinator with its hello. Whoever writes a field is named at its block. All fields are
 * naturally aligned and accessed with relaxed atomics unless said otherwise. Times are CLOCK_MONOTONIC nanoseconds,
 * sizes are bytes.
 */
#ifndef GPUSHARE_PAGE_H
#define GPUSHARE_PAGE_H

#include <stdint.h>

/* layout begins */

#define GPUSHARE_PAGE_MAGIC 0x65726873
#define GPUSHARE_PAGE_VERSION 7
#define GPUSHARE_PAGE_BYTES 4096

/* The gate word: state in the two low bits, the epoch above them, METERED on top. Opening stores OPEN with a new epoch,
 * closing stores CLOSING with that same epoch. Waiting threads sleep on it as a (shared) futex. CLOSED is what a page starts with. */
#define GPUSHARE_GATE_CLOSED 0
#define GPUSHARE_GATE_OPEN 1
#define GPUSHARE_GATE_CLOSING 2
#define GPUSHARE_GATE_STEP 3 /* open for one call of each thread: what the device waits for can come, and no more */
#define GPUSHARE_GATE_STATE 3
#define GPUSHARE_GATE_EPOCH_SHIFT 2
#define GPUSHARE_GATE_EPOCHS 0x20000000 /* epochs count modulo this; since version 6, before it was twice as many */
/* Since version 6. Set and cleared by the process itself while the gate is OPEN: calls take the slow path, where
 * window_ns, launch_rate and spacing_ppm are obeyed. Whoever stores another word leaves it out. */
#define GPUSHARE_GATE_METERED 0x80000000

/* spacing_ppm: make no calls at all until it changes. */
#define GPUSHARE_SPACING_STOP 0xffffffff

/* report.drains: the number of drains that took less than 2^i ms, and no less than the one before; the last: longer. */
#define GPUSHARE_DRAIN_BUCKETS 12

/* What a process is doing, for display only. */
#define GPUSHARE_PHASE_IDLE 0
#define GPUSHARE_PHASE_WAITING 1
#define GPUSHARE_PHASE_RUNNING 2
#define GPUSHARE_PHASE_DRAINING 3

/* Who opens the gate. */
#define GPUSHARE_MODE_COORDINATED 0
#define GPUSHARE_MODE_LOCK_FILE 1

/* How a process holds device memory; 0: it does not say. */
#define GPUSHARE_MEMORY_UNIFIED 1
#define GPUSHARE_MEMORY_SWAP 2
#define GPUSHARE_MEMORY_PLAIN 3

#define GPUSHARE_SLOTS 64

/* Written by the creating process, once. */
struct gpushare_page_header {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t pid;
};

/* Written by the coordinator. The process itself writes the gate where it ends a turn at its deadline, opens one that it
 * is named for, or meters; in lock-file mode gate, deadline and rates; and before a hello it clears what is an earlier
 * coordinator's word, and the next one may be too old to know: carry, hand_on, restore_ahead, exempt_ns. */
struct gpushare_orders {
    uint32_t gate;             /* futex; stored with release, loaded with acquire */
    uint32_t interrupt_seq;    /* futex-woken with the gate: a change interrupts a waiting call, as SIGINT does */
    uint32_t contended;        /* another client waits for a device of this one: watch for idleness */
    uint32_t queue_position;   /* 1 = next; 0 = not queued */
    uint64_t deadline_ns;      /* when the turn ends; 0 = it goes on */
    uint64_t quantum_ns;       /* the quantum in force, also used in lock-file mode */
    uint64_t idle_release_ns;  /* without submissions or GPU work for this long, the agent reports idle */
    uint64_t heartbeat_ns;     /* the coordinator is alive; written every second */
    uint64_t memory_limit;     /* what the client may allocate, all its processes together; 0 = no limit */
    uint64_t memory_total;     /* what the client is told that its device holds */
    uint64_t memory_backing;   /* what device and host can still back for anybody; all ones = unknown */
    uint64_t resident_target;  /* what may stay on the device while others run; all ones = everything */
    uint64_t expected_wait_ns; /* 0 = unknown or not waiting */
    uint64_t launch_rate;      /* blocks per second; 0 = not limited */
    uint64_t window_ns;        /* bound of outstanding GPU work while contended; 0 = none */
    uint32_t share_ppm;        /* quota: guaranteed fraction of time, parts per million */
    uint32_t limit_ppm;        /* quota: largest fraction of time, parts per million */
    uint32_t slot;             /* this process's index into gpushare_client.allocated */
    uint32_t quota_set;        /* bits: 1 the quota fields hold a quota, for a later coordinator; 2 memory_limit was
                                   asked for; 4 service class offline; 8 resident_quota was asked for; 16 the client is
                                   suspended by a person; 32 for being idle */
    /* since version 2 */
    uint32_t carry;   /* not 0: the epoch by which this process may open its gate itself, with the device's lock */
    uint32_t hand_on; /* not 0: after draining, give the device's lock up before saying so: somebody waits for it */
    /* since version 3 */
    uint64_t resident_quota; /* quota: bytes that may stay on the device while others wait */
    uint32_t hears;          /* bits: messages that not every coordinator knows: 1 "evicting", 2 "short",
                                 4 "restored", 8 "busy"; 16: it answers every "short", as long as that takes */
    uint32_t no_room;        /* since version 4: the short_seq to which the answer is that nobody can make room */
    /* since version 5 */
    uint32_t inspect_seq; /* when it changes, the agent answers with "details" */
    /* since version 6: GPU time at most, of all time, in parts per million: pauses follow stretches of work, in that
     * proportion; 0 = not spaced */
    uint32_t spacing_ppm;
    /* since version 7 */
    uint64_t restore_ahead; /* while the gate is closed: up to so many bytes may be on the device, where there is room;
                               0 = what is away comes back with the turn */
    uint64_t exempt_ns;     /* launches of functions that take less than this pass by launch_rate; 0 = none do */
};

/* Written by the process. The coordinator clamps whatever it reads here. */
struct gpushare_report {
    uint32_t phase;         /* GPUSHARE_PHASE_… */
    uint32_t mode;          /* GPUSHARE_MODE_… */
    uint32_t waiting;       /* threads that wait at the gate */
    uint32_t drained_epoch; /* the last epoch of which this process has drained */
    uint64_t launches;
    uint64_t blocks;
    uint64_t copies;
    uint64_t bytes_copied;
    uint64_t sampled_ns; /* when the agent last summed the counters */
    uint64_t last_submission_ns;
    uint64_t allocated;     /* device memory that this process has allocated */
    uint64_t resident;      /* of it, on the device; an estimate under unified memory, see asked_managed */
    uint64_t pinned;        /* of it, what cannot be moved */
    uint64_t evicted_bytes; /* copied from device to host so far, and the time that took */
    uint64_t evicted_ns;
    uint64_t restored_bytes; /* and back: with a turn, or ahead of it */
    uint64_t restored_ns;
    uint64_t gate_waits; /* calls that had to wait, and for how long in all */
    uint64_t gate_wait_ns;
    uint64_t drain_ns; /* the last drain, from closing to drained */
    uint64_t refused;  /* allocations refused by a limit */
    /* since version 4 */
    uint64_t absent;      /* bytes that must be on the device before the gate lets anything through, and are not yet */
    uint64_t host_pinned; /* host memory for what was evicted: page-locked, kept for the next time too */
    uint64_t host_pageable; /* and ordinary */
    uint64_t short_bytes;   /* needed on the device, which is full; 0 = nothing */
    uint32_t short_seq;     /* counts changes of it */
    uint32_t unused_report;
    /* since version 6 */
    uint64_t drain_most_ns; /* the longest drain so far, and all together */
    uint64_t drain_total_ns;
    uint64_t gpu_ns;      /* how long the device has worked for this process; estimated by looking now and then */
    uint64_t meter_waits; /* calls that the meter held back, and for how long in all */
    uint64_t meter_wait_ns;
    uint32_t drains[GPUSHARE_DRAIN_BUCKETS];
    uint32_t memory_mode;   /* since version 7: GPUSHARE_MEMORY_… */
    uint32_t asked_managed; /* not 0: the program has asked for unified memory itself: then `resident` is an estimate in
                               every mode */
};

struct gpushare_page {
    struct gpushare_page_header header;
    uint64_t reserved_header[6];
    struct gpushare_orders orders;
    uint64_t reserved_orders[107];
    struct gpushare_report report;
};

/* Shared by the processes of one client, which trust each other; a sealed memfd of GPUSHARE_PAGE_BYTES too. */
struct gpushare_client {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t turn_epoch;    /* lock-file mode: counts the turns of this client */
    uint64_t turn_began_ns; /* lock-file mode: when the present turn began; 0 = no turn */
    uint64_t
        allocated[GPUSHARE_SLOTS]; /* per process; each writes its own slot, the coordinator clears it at its end */
};

/* layout ends */

_Static_assert(sizeof(struct gpushare_page) <= GPUSHARE_PAGE_BYTES, "the page outgrew its memfd");
_Static_assert(sizeof(struct gpushare_client) <= GPUSHARE_PAGE_BYTES, "the client page outgrew its memfd");
_Static_assert(__builtin_offsetof(struct gpushare_page, orders) == 64, "orders keep a cache line of their own");
_Static_assert(__builtin_offsetof(struct gpushare_page, report) % 64 == 0, "reports keep cache lines of their own");

#endif
