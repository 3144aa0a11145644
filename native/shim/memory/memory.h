/* Reservation, deferred frees and graph memory; includes the ledger, the modes and residency. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "memory/ledger.h"
#include "memory/mode.h"
#include "memory/residency.h"

#pragma GCC visibility push(hidden)

/* --- reservation.c, allocation.c --- */

bool reserve_memory(uint64_t bytes, bool unmovable); /* free what deferred_free.c has completed, then account_reserve */
CUresult memory_release(const struct entry *entry);
void memory_unaccount(const struct entry *entry); /* it is no longer allocated */

/* --- deferred_free.c: frees that wait for the earlier work of their stream --- */

CUresult deferred_add(const struct entry *entry, CUstream stream);
CUresult deferred_add_after_turn(const struct entry *entry); /* free it when the process is in no turn */
void deferred_try_free(void);       /* free what has completed, unless another thread does that at this moment */
void deferred_free_completed(void); /* likewise, and wait for that thread */
bool deferred_drain(void);          /* wait for all that has an event; false: there was none */
bool deferred_any(void);
void deferred_drop_context(CUcontext context, struct entry_sums *ended); /* as ledger_drop_context */
void deferred_after_fork(void);

/* --- pool_figures.c: what programs read about a pool of which the shim has put the memory elsewhere --- */

uint16_t pool_figures_add(CUmemoryPool pool, uint64_t bytes); /* returns the number for `struct entry` */
void pool_figures_remove(uint16_t number, uint64_t bytes);
uint64_t pool_figure(CUmemoryPool pool, int attribute); /* bytes, in addition to the driver's own figure */
void pool_figures_reset_high(CUmemoryPool pool, int attribute);
void pool_figures_drop(CUmemoryPool pool); /* the program has destroyed it */
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
