/* The page: the shared memory of the coordinator and one process. Both directions are levels. The doorbell, a line that
 * holds one zero byte, means "read the page".
 *
 * This header is the only definition of the layout. C includes it; Python hands the part between "layout begins" and
 * "layout ends" to cffi.
 *
 * A page belongs to one connection. Before each hello the process makes a new page, copies the previous page, and
 * passes the descriptor with the hello. The page is a memfd of GPUSHARE_PAGE_BYTES, sealed against growing, shrinking
 * and further seals. So a coordinator that was stuck writes to pages that no process reads any more.
 *
 * The comment of each block names its writer. All fields are naturally aligned and accessed with relaxed atomics.
 * Times are CLOCK_MONOTONIC nanoseconds, sizes are bytes. */
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

/* Turn numbers begin here, so that they are bytes of a lock file that no other lock uses. */
#define GPUSHARE_FIRST_TURN 0x100000000

/* budget_unit, and a budget_rate under which nothing passes. */
#define GPUSHARE_BUDGET_BLOCKS 0
#define GPUSHARE_BUDGET_TIME 1
#define GPUSHARE_BUDGET_STOP 0xffffffffffffffff

/* report.drains: the number of drains that took less than 2^i ms and at least the bound before; the last: all longer
 * ones. */
#define GPUSHARE_DRAIN_BUCKETS 12

/* How a process holds device memory; 0: unknown. */
#define GPUSHARE_MEMORY_UNIFIED 1
#define GPUSHARE_MEMORY_SWAP 2
#define GPUSHARE_MEMORY_PLAIN 3

/* report.bypassing_libraries: libraries of NVIDIA whose work may pass the gate, and newer forms of hooked functions. */
#define GPUSHARE_LIBRARY_NVDEC 1
#define GPUSHARE_LIBRARY_NVENC 2
#define GPUSHARE_LIBRARY_OPTIX 4
#define GPUSHARE_LIBRARY_NEWER 8

/* words of the text of a progress */
#define GPUSHARE_TEXT_WORDS 8

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

/* Permission of the coordinator for a process to have its devices. The coordinator writes it. A reader that finds
 * `check` wrong keeps its copy and reads again after a millisecond, so the order of the stores does not matter. */
struct gpushare_permit {
    uint64_t turn;        /* the number of the turn; colocated clients have the same one */
    uint64_t devices;     /* bits of the client page's device table: the process enters the turn on all of them */
    uint64_t deadline_ns; /* when the turn ends; 0 = unknown */
    uint32_t epoch;       /* the number of this permit; 0 = the coordinator has written none yet */
    /* MAY: the process may enter, or stay.
     * RELIEVED: another client follows without the coordinator, so the turn ends at its deadline.
     * CONTENDED: another client waits, or is limited for this one, so an idle turn ends early. */
    uint32_t flags;
    uint64_t check;
};

/* Where a process stands with its present or last turn; written by the process. */
struct gpushare_turn {
    uint64_t turn;
    uint64_t entered_ns; /* when the process entered */
    uint64_t closed_ns;  /* when its gate closed; 0 = it has not */
    uint64_t left_ns;    /* when the process left the turn; 0 = it has not */
    uint32_t epoch;      /* of the permit under which the process is in, or was; 0: no coordinator, or not connected */
    uint32_t phase;
    uint32_t refused_entries; /* tries to enter that were refused, since the start */
    uint32_t steps;           /* steps in this closing */
    uint64_t check;
};

/* Written by the coordinator. */
struct gpushare_control {
    struct gpushare_permit permit;
    uint64_t quantum_ns;       /* the quantum in force, also without a coordinator */
    uint64_t idle_release_ns;  /* the process is idle after this time without submissions and GPU work; 0 = never */
    uint64_t heartbeat_ns;     /* written every second, so that the process finds the coordinator alive */
    uint64_t memory_limit;     /* bytes that all processes of the client may allocate together; 0 = no limit */
    uint64_t memory_total;     /* the apparent memory of the client's device */
    uint64_t memory_backing;   /* bytes of the client that devices and host can back; all ones = unknown */
    uint64_t evicted_limit;    /* bytes that may be off the device, as the host has memory for them; all ones = any */
    uint64_t resident_quota;   /* quota: bytes that may stay on the device while other clients wait */
    uint64_t expected_wait_ns; /* 0 = unknown or not waiting */
    uint64_t budget_rate;      /* bound of launches while colocated, units per second; 0 = none */
    uint64_t exempt_ns;        /* launches of functions that take less pass by a budget of blocks; 0 = none */
    uint64_t window_ns;        /* bound of unfinished GPU work while contended; 0 = none */
    uint64_t context_bytes;    /* context memory of all clients on the client's fullest device; 0 = unknown */
    uint32_t budget_unit;      /* BLOCKS of launches, or TIME: nanoseconds of work on the device */
    uint32_t share_ppm;        /* quota: guaranteed fraction of time, parts per million */
    uint32_t limit_ppm;        /* quota: largest fraction of time, parts per million */
    /* Bits. 1: the quota fields hold a quota, for a later coordinator. 2: memory_limit was asked for.
     * 4: service class offline. 8: resident_quota was asked for.
     * 16: a user has suspended the client. 32: the idle policy has suspended the client.
     * 64: a guest that counts as offline. */
    uint32_t quota_flags;
    uint32_t queue_position; /* 1 = next; 0 = not queued */
    uint32_t slot;           /* the index of this process in the client page's tables */
    uint32_t
        refused_request_seq; /* the unmet_request_seq of the request that was refused, because no client can make room */
    uint32_t interrupt_seq;  /* a change interrupts a waiting call, as SIGINT does */
    uint32_t inspect_seq;    /* a change makes the process answer with "details" */
    uint32_t unused;
    /* By device, in the order of the devices in the hello. Memory that `report.devices` does not have counts in equal
     * parts on all devices of the process.
     * Bytes that may stay on the device while other clients run; all ones = everything. */
    uint64_t resident_target[GPUSHARE_DEVICES];
    /* bytes that may be resident while the gate is closed, if the device has room; 0 = memory is restored with the
     * turn */
    uint64_t prefetch_limit[GPUSHARE_DEVICES];
    /* bytes that may be resident in a turn, on all devices of the process together; 0 = no limit. Mode unified only: the
     * other modes keep all of their memory on the device in a turn. */
    uint64_t turn_limit;
};

/* Memory of one device; written by the process. */
struct gpushare_device_memory {
    uint64_t allocated, resident, unmovable, unmade; /* as in the report */
};

/* The progress that the program shows, such as 3 of 10 epochs. The words change one by one, so a reader may find the old
 * value of one and the new value of another. */
struct gpushare_progress {
    uint64_t done;
    uint64_t total;                     /* 0 = unknown */
    uint64_t first;                     /* `done` when this progress began */
    uint64_t began_ns;                  /* 0 = the program shows no progress */
    uint64_t changed_ns;                /* when the program showed `done` */
    uint64_t text[GPUSHARE_TEXT_WORDS]; /* UTF-8, in the order of memory, with zeros at the end */
};

/* Written by the process. The coordinator clamps every value that it reads here. */
struct gpushare_report {
    struct gpushare_turn turn;
    uint32_t waiting;  /* threads that wait at the gate */
    uint32_t idle;     /* not 0: in the turn, with no submission and no GPU work for idle_release_ns */
    uint32_t evicting; /* not 0: the work has finished, and only memory leaves the device */
    uint32_t restored; /* changes when all evicted memory that calls of a turn have waited for is on the device */
    uint64_t launches;
    uint64_t blocks;
    uint64_t copies;
    uint64_t bytes_copied;
    uint64_t sampled_ns; /* when the agent last summed the counters */
    uint64_t last_submission_ns;
    uint64_t allocated;     /* bytes of device memory that this process has allocated */
    uint64_t resident;      /* of those, on the device; an estimate under unified memory, see uses_managed_memory */
    uint64_t unmovable;     /* of those, unmovable */
    uint64_t unmade;        /* allocated bytes that neither the device nor the host has memory for yet */
    uint64_t evicted_bytes; /* copied from device to host so far, and the time that took */
    uint64_t evicted_ns;
    uint64_t restored_bytes; /* and back, with a turn or before it */
    uint64_t restored_ns;
    uint64_t gate_waits; /* calls that had to wait, and for how long in total */
    uint64_t gate_wait_ns;
    uint64_t drain_ns;     /* the last drain, from closing to drained */
    uint64_t drain_max_ns; /* the longest drain so far, and all drains in total */
    uint64_t drain_total_ns;
    uint32_t drains[GPUSHARE_DRAIN_BUCKETS];
    uint64_t refused_allocations; /* allocations refused by a limit */
    uint64_t missing_bytes;  /* bytes that must be on the device before the gate lets a call through, and are not yet */
    uint64_t host_pinned;    /* page-locked host memory for evicted memory, kept for the next eviction */
    uint64_t host_pageable;  /* other host memory for evicted memory, also while it is kept for the next eviction */
    uint64_t unmet_bytes;    /* bytes needed on a device, which is full; 0 = none */
    uint64_t gpu_ns;         /* how long the device has worked for this process; estimated from samples */
    uint64_t throttle_waits; /* calls that the throttle held back, and for how long in total */
    uint64_t throttle_wait_ns;
    uint32_t unmet_request_seq; /* the number of changes of unmet_bytes */
    uint32_t memory_mode;       /* GPUSHARE_MEMORY_… */
    /* not 0: the program itself has asked for unified memory, so `resident` is an estimate in every mode */
    uint32_t uses_managed_memory;
    uint32_t bypassing_libraries; /* bits GPUSHARE_LIBRARY_… that the process has loaded */
    uint32_t unmet_device;        /* the full device: 1 and its place in the hello; 0 = any device of the process */
    uint32_t unused;
    uint64_t training_steps; /* training steps that the program has marked */
    struct gpushare_progress progress;
    /* the part of the memory in this report whose device is known, in the order of the devices in the hello */
    struct gpushare_device_memory devices[GPUSHARE_DEVICES];
};

struct gpushare_page {
    struct gpushare_page_header header;
    uint64_t reserved_header[6];
    struct gpushare_control control;
    uint64_t reserved_control[8];
    struct gpushare_report report;
};

/* A process of a client, as its siblings read it. Each process writes its own slot; the coordinator clears the slot
 * of a process that has ended. */
struct gpushare_slot {
    uint64_t allocated; /* bytes of device memory */
    uint64_t turn;      /* the turn that the process is in */
    uint64_t since_ns;  /* when its gate closed */
    uint32_t phase;
    uint32_t seen; /* when the agent wrote last: the second of CLOCK_MONOTONIC */
};

/* Shared by the processes of one client, which trust each other; a sealed memfd of GPUSHARE_CLIENT_BYTES. */
struct gpushare_client {
    uint32_t magic;
    uint32_t version;
    uint32_t bytes;
    /* entries of the table that are in use; the coordinator appends entries and never changes one */
    uint32_t device_count;
    uint64_t turn; /* the number that all processes use without a coordinator; written once, by the creating process */
    uint64_t entered_ns; /* without a coordinator: when the first process entered the present turn */
    uint32_t last_slot;  /* the highest number of a slot that a process has used so far */
    uint32_t reserved;
    struct gpushare_slot slots[GPUSHARE_SLOTS];
    char devices[GPUSHARE_DEVICES][GPUSHARE_UUID_BYTES];
};

/* layout ends */

_Static_assert(sizeof(struct gpushare_page) <= GPUSHARE_PAGE_BYTES, "the page outgrew its memfd");
_Static_assert(sizeof(struct gpushare_client) <= GPUSHARE_CLIENT_BYTES, "the client page outgrew its memfd");
_Static_assert(__builtin_offsetof(struct gpushare_page, control) == 64,
               "the control block keeps a cache line of its own");
_Static_assert(__builtin_offsetof(struct gpushare_page, report) % 64 == 0, "reports keep cache lines of their own");

/* Return a mix of the words of a permit or a turn before `check`; never 0 for a struct that holds something. */
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
