/* Memory that the program has freed, and the room that this memory leaves for allocations. */
#ifndef GPUSHARE_FREED_H
#define GPUSHARE_FREED_H

#include "memory/account/mode.h"
#include "memory/transfers/transfers.h"

#pragma GCC visibility push(hidden)

/* --- reservation.c, release.c --- */

bool reserve_memory(uint64_t bytes, bool unmovable); /* release freed memory, if necessary, and reserve */
CUresult memory_release(const struct entry *entry);
void memory_unaccount(const struct entry *entry); /* it is no longer allocated */

/* --- freed_list.c: memory that is neither released nor reused yet --- */

bool deferred_any(void);
void deferred_stream_ends(CUstream stream);

/* --- reuse.c --- */

/* Take freed memory of the pool and the context for an allocation in the stream. False: there is none. */
bool deferred_reuse(CUmemoryPool pool, uint64_t bytes, CUcontext context, CUstream stream, struct entry *entry);

/* --- deferred_free.c: frees that wait for the earlier work of their stream --- */

CUresult deferred_add(const struct entry *entry, CUstream stream);
CUresult deferred_add_after_turn(const struct entry *entry); /* free it when the process is in no turn */
void deferred_request_poll(void);                            /* a threshold has changed */
uint64_t deferred_poll(uint64_t now); /* agent: free completed memory above the thresholds; the next call's time */
void deferred_free_completed(void);   /* likewise, at once */
bool deferred_free_some(unsigned max_count);          /* of all completed memory; false: there was none */
void deferred_trim(CUmemoryPool pool, uint64_t keep); /* free completed memory of the pool above `keep` bytes */
bool deferred_drain(void); /* wait for all that has an event, and free what may be freed; false: nothing */
void deferred_drop_context(CUcontext context, struct entry_sums *ended); /* as ledger_drop_context */
void deferred_after_fork(void);

/* --- room.c --- */

bool room_release_freed(void); /* under residency_lock; false: the program has freed no memory that is still there */
/* For a call of the driver that takes memory which no allocation shows, as a new context does. True: the caller makes the
 * call again. False: *result is the result for the program. residency_lock is not held. */
bool room_make(struct shortage *shortage, CUresult *result);

#pragma GCC visibility pop

#endif
