/* The program's allocations, their use of its limits, and the places of its memory. */
#ifndef GPUSHARE_MEMORY_H
#define GPUSHARE_MEMORY_H

#include "memory/ledger.h"
#include "memory/mode.h"
#include "memory/residency.h"

#pragma GCC visibility push(hidden)

/* --- reservation.c, allocation.c --- */

bool reserve_memory(uint64_t bytes, bool unmovable); /* account_reserve, after completed deferred frees */
CUresult memory_release(const struct entry *entry);
void memory_unaccount(const struct entry *entry); /* it is no longer allocated */

/* --- deferred_free.c: memory that is freed when its stream has reached a place --- */

CUresult deferred_add(const struct entry *entry, CUstream stream);
CUresult deferred_add_until_idle(const struct entry *entry); /* until the default streams of its context are idle */
void deferred_try_free(void);       /* free what has completed, unless another thread does that at this moment */
void deferred_free_completed(void); /* likewise, and wait for that thread */
bool deferred_drain(void);          /* wait for all that has an event; false: there was none */
bool deferred_any(void);
uint64_t deferred_drop_context(CUcontext context, uint64_t *unmovable, uint64_t *evicted); /* as ledger_drop_context */
void deferred_after_fork(void);

/* --- graph_memory.c --- */

bool graph_memory_reserve(uint64_t bytes); /* false: a limit forbids it */
void graph_memory_update(uint64_t ended);  /* a graph of so many bytes has ended, or memory was trimmed */
void graph_memory_add(CUgraphExec graph, CUcontext context, uint64_t bytes);
uint64_t graph_memory_remove(CUgraphExec graph); /* its bytes */
uint64_t graph_bytes(void);                      /* that all graphs reserve */
void graphs_drop_context(CUcontext context);
void graphs_after_fork(void);

#pragma GCC visibility pop

#endif
