/* The page: the shared memory between the coordinator and one process. Both directions are levels; the doorbell, a line
 * that holds one zero byte, means "look at the page".
 *
 * This header is the only definition of the layout. C includes it; Python hands the part between "layout begins" and
 * "layout ends" to cffi.
 *
 * A page belongs to one connection: before each hello the process makes a new one, as a memfd of GPUSHARE_PAGE_BYTES that
 * is sealed against growing, shrinking and further seals, copies what the page before held, and passes the descriptor
 * with the hello. A coordinator that had hung thus writes to pages that no process reads any more. The comment of each
 * block names its writer. All fields are naturally aligned and accessed with relaxed atomics. Times are CLOCK_MONOTONIC
 * nanoseconds, sizes are bytes. */
#ifndef GPUSHARE_PAGE_H
#define GPUSHARE_PAGE_H

#include <stdint.h>

/* layout begins */

#define GPUSHARE_PAGE_MAGIC 0x65726873
#define GPUSHARE_PAGE_VERSION 1
#define GPUSHARE_PAGE_BYTES 4096
#define GPUSHARE_CLIENT_BYTES 8192

/* permit.flags */
#define GPUSHARE_MAY 1
#define GPUSHARE_RELIEVED 2
#define GPUSHARE_CONTENDED 4

/* turn.phase: where a process stands with its turn. */
#define GPUSHARE_OUT 0
#define GPUSHARE_IN 1
#define GPUSHARE_CLOSING 2
#define GPUSHARE_STEP 3
#define GPUSHARE_LEAVING 4

/* Numbers of turns lie from here on, so that they are bytes of a lock file that no other lock uses. */
#define GPUSHARE_FIRST_TURN 0x100000000

/* budget_unit; and a budget_rate under which nothing passes. */
#define GPUSHARE_BUDGET_BLOCKS 0
#define GPUSHARE_BUDGET_TIME 1
#define GPUSHARE_BUDGET_STOP 0xffffffffffffffff

/* report.drains: the number of drains that took less than 2^i ms, and no less than the one before; the last: longer. */
#define GPUSHARE_DRAIN_BUCKETS 12

/* How a process holds device memory; 0: unknown. */
#define GPUSHARE_MEMORY_UNIFIED 1
#define GPUSHARE_MEMORY_SWAP 2
#define GPUSHARE_MEMORY_PLAIN 3

#define GPUSHARE_SLOTS 64
#define GPUSHARE_DEVICES 64
#define GPUSHARE_UUID_BYTES 48

/* Written by the creating process, once. */
struct gpushare_page_header {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t pid;
};

/* What the coordinator allows a process; written by the coordinator. A reader that finds `check` wrong keeps its copy and
 * reads again after a millisecond, so the order of the stores does not matter. */
struct gpushare_permit {
    uint64_t turn;        /* the number of the turn; clients that may run together have the same one */
    uint64_t devices;     /* bits of the client page's device table: the process enters the turn on all of them */
    uint64_t deadline_ns; /* when the turn ends; 0 = not known */
    uint32_t epoch;       /* the number of this permit; 0 = the coordinator has written none yet */
    uint32_t flags;       /* MAY: the process may enter, or stay; RELIEVED: another client takes over without a word, so
                             the turn ends at its deadline; CONTENDED: another client waits, so idleness matters */
    uint64_t check;
};

/* Where a process stands with its turn, the present or the last one; written by the process. */
struct gpushare_turn {
    uint64_t turn;
    uint64_t began_ns;  /* when the process entered */
    uint64_t closed_ns; /* when its gate closed; 0 = it has not */
    uint64_t ended_ns;  /* when the process left the turn; 0 = it has not */
    uint32_t epoch;     /* of the permit under which the process is in, or was; 0: no coordinator, or no contact */
    uint32_t phase;
    uint32_t tries;      /* refused tries to enter, counted for ever */
    uint32_t step_tries; /* steps in this closing */
    uint64_t check;
};

/* Written by the coordinator. */
struct gpushare_orders {
    struct gpushare_permit permit;
    uint64_t quantum_ns;       /* the quantum in force, also used without a coordinator */
    uint64_t idle_release_ns;  /* without submissions or GPU work for this long, the process is idle; 0 = never */
    uint64_t heartbeat_ns;     /* the coordinator is alive; written every second */
    uint64_t memory_limit;     /* what the client may allocate, all its processes together; 0 = no limit */
    uint64_t memory_total;     /* what the client is told that its device holds */
    uint64_t memory_backing;   /* what device and host can still back for any client; all ones = unknown */
    uint64_t resident_target;  /* what may stay on the device while others run; all ones = everything */
    uint64_t resident_quota;   /* quota: bytes that may stay on the device while others wait */
    uint64_t restore_ahead;    /* while the gate is closed: up to so many bytes may be on the device, where there is
                                  room; 0 = what is away comes back with the turn */
    uint64_t expected_wait_ns; /* 0 = unknown or not waiting */
    uint64_t budget_rate;      /* what may be launched beside a neighbour, units per second; 0 = as much as comes */
    uint64_t exempt_ns;        /* launches of functions that take less pass by a budget of blocks; 0 = none do */
    uint64_t window_ns;        /* bound of outstanding GPU work while contended; 0 = none */
    uint32_t budget_unit;      /* BLOCKS of launches, or TIME: nanoseconds of work on the device */
    uint32_t share_ppm;        /* quota: guaranteed fraction of time, parts per million */
    uint32_t limit_ppm;        /* quota: largest fraction of time, parts per million */
    uint32_t quota_set;        /* bits: 1 the quota fields hold a quota, for a later coordinator; 2 memory_limit was
                                  asked for; 4 service class offline; 8 resident_quota was asked for; 16 the client is
                                  suspended by a person; 32 for being idle */
    uint32_t queue_position;   /* 1 = next; 0 = not queued */
    uint32_t slot;             /* this process's index into the client page's tables */
    uint32_t no_room;          /* the short_seq to which the answer is that no client can make room */
    uint32_t interrupt_seq;    /* a change interrupts a waiting call, as SIGINT does */
    uint32_t inspect_seq;      /* when it changes, the process answers with "details" */
    uint32_t unused;
};

/* Written by the process. The coordinator clamps whatever it reads here. */
struct gpushare_report {
    struct gpushare_turn turn;
    uint32_t waiting;  /* threads that wait at the gate */
    uint32_t idle;     /* not 0: in the turn, with nothing submitted and nothing running for idle_release_ns */
    uint32_t evicting; /* not 0: the work has finished, only memory leaves the device */
    uint32_t restored; /* counts the turns in which memory had to come back, and has */
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
    uint64_t drain_ns;      /* the last drain, from closing to drained */
    uint64_t drain_most_ns; /* the longest drain so far, and all together */
    uint64_t drain_total_ns;
    uint32_t drains[GPUSHARE_DRAIN_BUCKETS];
    uint64_t refused;     /* allocations refused by a limit */
    uint64_t absent;      /* bytes that must be on the device before the gate lets anything through, and are not yet */
    uint64_t host_pinned; /* host memory for what was evicted: page-locked, kept for the next time too */
    uint64_t host_pageable; /* and ordinary */
    uint64_t short_bytes;   /* needed on the device, which is full; 0 = nothing */
    uint64_t gpu_ns;        /* how long the device has worked for this process; estimated by looking now and then */
    uint64_t meter_waits;   /* calls that the meter held back, and for how long in all */
    uint64_t meter_wait_ns;
    uint32_t short_seq;     /* counts changes of short_bytes */
    uint32_t memory_mode;   /* GPUSHARE_MEMORY_… */
    uint32_t asked_managed; /* not 0: the program has asked for unified memory itself: then `resident` is an estimate in
                               every mode */
    uint32_t unused;
};

struct gpushare_page {
    struct gpushare_page_header header;
    uint64_t reserved_header[6];
    struct gpushare_orders orders;
    uint64_t reserved_orders[97];
    struct gpushare_report report;
};

/* A process of a client, as its siblings see it; each process writes its own slot, the coordinator clears the slot of a
 * process that has ended. */
struct gpushare_slot {
    uint64_t allocated; /* bytes of device memory */
    uint64_t turn;      /* that the process is in */
    uint64_t since_ns;  /* when its gate closed */
    uint32_t phase;
    uint32_t seen; /* when its agent looked last: the second of CLOCK_MONOTONIC */
};

/* Shared by the processes of one client, which trust each other; a sealed memfd of GPUSHARE_CLIENT_BYTES. */
struct gpushare_client {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes;
    uint32_t device_count; /* entries of the table that are in use; the coordinator appends, never changes one */
    uint64_t turn;         /* the number that all processes use without a coordinator; by the creating process, once */
    uint64_t began_ns;     /* without a coordinator: when the first process entered the present turn */
    struct gpushare_slot slots[GPUSHARE_SLOTS];
    char devices[GPUSHARE_DEVICES][GPUSHARE_UUID_BYTES];
};

/* layout ends */

_Static_assert(sizeof(struct gpushare_page) <= GPUSHARE_PAGE_BYTES, "the page outgrew its memfd");
_Static_assert(sizeof(struct gpushare_client) <= GPUSHARE_CLIENT_BYTES, "the client page outgrew its memfd");
_Static_assert(__builtin_offsetof(struct gpushare_page, orders) == 64, "orders keep a cache line of their own");
_Static_assert(__builtin_offsetof(struct gpushare_page, report) % 64 == 0, "reports keep cache lines of their own");

/* A mix of the words of a permit or a turn before `check`; never 0 for a struct that holds something. */
static inline uint64_t gpushare_check(const void *words, int count) {
    const uint64_t *word = (const uint64_t *)words;
    uint64_t mix = 1;
    for (int i = 0; i < count; i++) {
        mix = (mix ^ __atomic_load_n(&word[i], __ATOMIC_RELAXED)) * 0x9e3779b97f4a7c15u;
        mix ^= mix >> 32;
    }
    return mix;
}

#define GPUSHARE_PERMIT_WORDS 4 /* before `check` */
#define GPUSHARE_TURN_WORDS 6

#endif
