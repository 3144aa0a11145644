/* When memory moves, the memory modes and graph memory. Includes the headers of the parts of the folder. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "memory/account/mode.h"
#include "memory/freed/freed.h"
#include "memory/swap/swap.h"
#include "memory/transfers/transfers.h"

#pragma GCC visibility push(hidden)

/* --- residency.c --- */

/* agent, after a drain: memory that must leave before the turn ends is leaving; `always`: in every memory mode */
bool residency_is_evicting(bool always, uint64_t now, uint64_t *next);
uint64_t residency_poll(uint64_t now); /* agent, while not running: the time of the next call */
/* A thread at the open gate. CUDA_ERROR_NOT_READY: some memory cannot be restored yet. CUDA_ERROR_OUT_OF_MEMORY: the
 * device has had no room for long, and no client can make room. Any other error is the driver's, in many tries. */
CUresult residency_restore(uint32_t word);
/* A thread inside the closed gate: all memory is mapped, and stays mapped until the thread is outside. */
bool residency_is_mapped(void);
uint64_t residency_adjust(uint64_t now); /* agent, while the gate is open: the time of the next call */
void residency_pause(void);              /* no context is used for moving memory until … */
void residency_resume(CUcontext gone);   /* … here; NULL: no context has ended */
/* The current context may be the first one that can move memory whose own context has ended. */
void residency_use_current_context(void);
void residency_after_fork(void);

/* --- advice.c: where unified memory belongs --- */

#define MAX_PENDING 1024

/* Allocations that the shim handles later. Beyond MAX_PENDING, the shim does not handle them. */
struct pending {
    pthread_mutex_t lock;
    struct entry list[MAX_PENDING];
    _Atomic unsigned count;
};

void pending_add(struct pending *pending, CUdeviceptr address, size_t bytes);
bool pending_find(const struct entry *allocation, struct entry *found); /* false: the allocation has ended */
void advice_give(CUdeviceptr address, size_t bytes);                    /* to new memory, or later */
/* Agent, under residency_lock: give the advice that had to wait for idle streams. */
void advice_give_pending(void);
bool advice_class_has_changed(void); /* agent */
void advice_give_for_class(void);    /* agent, under residency_lock */
void advice_after_fork(void);

/* --- modes.c, mode_unified.c, mode_plain.c --- */

extern const struct memory_mode mode_unified, mode_plain;

const struct memory_mode *memory_mode_by_name(const char *name); /* NULL: there is none of that name */
#define MEMORY_MODE_NAMES "unified, swap, plain"

void unified_after_fork(void);

/* --- graph_memory.c --- */

bool graph_memory_reserve(uint64_t bytes); /* false: a limit forbids it */
void graph_memory_update(
    uint64_t ended); /* ended: bytes of graphs that have ended or were not instantiated; 0 after a trim */
void graph_memory_add(CUgraphExec graph, CUcontext context, uint64_t bytes);
uint64_t graph_memory_remove(CUgraphExec graph); /* returns the bytes of the graph */
uint64_t graph_bytes(void);                      /* bytes that are reserved for all graphs */
void graphs_drop_context(CUcontext context);
void graphs_after_fork(void);

#pragma GCC visibility pop

#endif
