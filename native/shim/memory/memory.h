/* Reservation, deferred frees and graph memory; includes the ledger, the modes and residency. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "memory/ledger.h"
#include "memory/mode.h"
#include "memory/residency.h"

#pragma GCC visibility push(hidden)

/* --- reservation.c, allocation.c --- */

bool reserve_memory(uint64_t bytes, bool unmovable); /* free what deferred_free.c keeps, if necessary, and reserve */
CUresult memory_release(const struct entry *entry);
void memory_unaccount(const struct entry *entry); /* it is no longer allocated */

/* --- deferred_free.c: frees that wait for the earlier work of their stream, and reuse of the memory --- */

CUresult deferred_add(const struct entry *entry, CUstream stream);
CUresult deferred_add_after_turn(const struct entry *entry); /* free it when the process is in no turn */
/* Take freed memory of the pool for an allocation in the stream. False: there is none. */
bool deferred_reuse(CUmemoryPool pool, uint64_t bytes, CUstream stream, struct entry *entry);
void deferred_stream_ends(CUstream stream);
void deferred_request_poll(void);     /* a threshold has changed */
uint64_t deferred_poll(uint64_t now); /* agent: free completed memory above the thresholds; the next call's time */
void deferred_free_completed(void);   /* likewise, at once */
bool deferred_free_some(unsigned max_count);          /* of all completed memory; false: there was none */
void deferred_trim(CUmemoryPool pool, uint64_t keep); /* free completed memory of the pool above `keep` bytes */
bool deferred_drain(void); /* wait for all that has an event, and free what may be freed; false: nothing */
bool deferred_any(void);
void deferred_drop_context(CUcontext context, struct entry_sums *ended); /* as ledger_drop_context */
void deferred_after_fork(void);

/* --- pool_figures.c: what programs read about a pool of which the shim has put the memory elsewhere --- */

#define MAX_POOLS 1024 /* with figures at the same time */

uint16_t pool_figures_add(CUmemoryPool pool, uint64_t bytes); /* returns the number for `struct entry` */
uint16_t pool_figures_number(CUmemoryPool pool);              /* 0: the pool has no figures */
void pool_figures_remove(uint16_t number, uint64_t bytes);
bool pool_figures_keep(uint16_t number, uint64_t bytes);        /* freed bytes; true: the pool is above its threshold */
void pool_figures_reuse(uint16_t number, uint64_t bytes);       /* kept bytes are in use again */
void pool_figures_remove_kept(uint16_t number, uint64_t bytes); /* kept bytes are released */
void pool_figures_trim(uint16_t number, uint64_t keep);     /* keep at most so many bytes, until the next allocation */
void pool_figures_surplus(uint64_t surplus[MAX_POOLS + 1]); /* kept bytes above the threshold of each pool */
uint64_t pool_figure(CUmemoryPool pool, int attribute);     /* bytes, in addition to the driver's own figure */
void pool_figures_set(CUmemoryPool pool, int attribute, uint64_t value); /* the program has set the attribute */
void pool_figures_drop(CUmemoryPool pool);                               /* the program has destroyed it */
void pool_figures_after_fork(void);

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
