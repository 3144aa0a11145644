/* What the program has allocated, what counts against its limits, and what is to be given back. Part of shim.h. */
#ifndef GPUSHARE_BOOKS_H
#define GPUSHARE_BOOKS_H

enum kind {
    REDIRECTED, /* asked for as device memory, made as unified memory */
    MANAGED,    /* asked for as unified memory */
    DEVICE,     /* plain device memory */
    POOLED,     /* plain device memory of a pool */
    HANDLE,     /* physical memory of the virtual-memory interface */
    ARRAY,
    SWAPPED, /* physical memory of the shim's own making, see swap.h */
    GRAPH,   /* not memory: what a launch of a graph counts as */
    KINDS,
};

struct summary {
    uint64_t number[KINDS], bytes[KINDS];
};

struct entry {
    uint64_t key; /* the address or handle; never 0 */
    uint64_t bytes;
    CUcontext context;
    uint32_t kind;
    uint32_t references; /* HANDLE: owners and mappings; REDIRECTED, MANAGED: EVICTED or 0 */
    uint64_t of;         /* a handle or mapping: the physical memory it stands for; an address: which use of it */
};

#define EVICTED 1 /* moved off the device, and not restored since */

static inline bool is_pinned(uint32_t kind) {
    return kind != REDIRECTED && kind != MANAGED && kind != SWAPPED;
}

enum book { ADDRESSES, HANDLES, ARRAYS, MAPPINGS, GRAPHS, BOOKS };

bool ledger_add(enum book book, const struct entry *entry);
bool ledger_find(enum book book, uint64_t key, struct entry *found);
bool ledger_take(enum book book, uint64_t key, struct entry *taken);
bool ledger_refer(uint64_t handle, int change, struct entry *gone); /* true: nothing refers to it any more */
/* Copies of the wanted entries, to be freed; their number, 0 also when there is no memory for that. */
size_t ledger_list(enum book book, bool (*wanted)(const struct entry *entry), struct entry **list);
bool ledger_mark(const struct entry *entry, uint32_t mark); /* of ADDRESSES; false: it is gone, or marked so already */
/* Bytes that went with it; adds to the others what of them was pinned, and what was evicted. */
uint64_t ledger_drop_context(CUcontext context, uint64_t *pinned, uint64_t *away);
void ledger_sum(struct summary *sum);
void ledger_after_fork(void);

bool account_reserve(uint64_t bytes, bool pinned); /* false: a limit forbids it; logged */
bool account_would_fit(uint64_t bytes);
void account_pin(uint64_t bytes);  /* of what is reserved already */
void account_moved(int64_t bytes); /* off the device, or back (negative) */
uint64_t account_resident(void);
void account_release(uint64_t bytes, bool pinned);
void account_join(struct gpushare_client *client, int file); /* agent: another client page from now on */
void account_slot(void);                                     /* agent: the coordinator may have given another slot */
void account_turn(const struct gpushare_turn *turn, uint64_t now); /* agent: what its siblings are to see of it */
uint32_t account_own_slot(void);
void account_figures(uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free);
void account_after_fork(void);
extern pthread_mutex_t account_lock;

bool reserve(uint64_t bytes, bool pinned); /* memory.c: account_reserve, after giving back what can be */
CUresult memory_release(const struct entry *entry);
void memory_forget(const struct entry *entry); /* it is no longer allocated */

#include "modes.h"

CUresult deferred_add(const struct entry *entry, CUstream stream);
uint64_t deferred_drop_context(CUcontext context, uint64_t *pinned, uint64_t *away);
void deferred_free(void);   /* give back memory whose stream has finished with it, unless another thread is at it */
void deferred_settle(void); /* the same, and wait for that thread: what has been finished with is free afterwards */
bool deferred_wait(void);   /* wait for all of it; false: there was none */
bool deferred_any(void);
void deferred_after_fork(void);

bool is_redirected(CUdeviceptr address);                         /* views.c */
void graphs_count(CUgraphExec graph, struct counters *counters); /* graph.c: a launch of it */
void graphs_drop_context(CUcontext context);
uint64_t graphs_counted(void); /* bytes that graphs allocate */
void graphs_after_fork(void);

#endif
