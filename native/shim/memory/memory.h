/* What the program has allocated, what counts against its limits, and what is to be given back. Part of shim.h. */
#ifndef GPUSHARE_BOOKS_H
#define GPUSHARE_BOOKS_H

enum memory_kind {
    MEMORY_REDIRECTED, /* asked for as device memory, made as unified memory */
    MEMORY_MANAGED,    /* asked for as unified memory */
    MEMORY_DEVICE,     /* plain device memory */
    MEMORY_POOLED,     /* plain device memory of a pool */
    MEMORY_HANDLE,     /* physical memory of the virtual-memory interface */
    MEMORY_ARRAY,
    MEMORY_SWAPPED, /* physical memory of the shim's own making, see swap.h */
    MEMORY_GRAPH,   /* not memory: what a launch of a graph counts as */
    MEMORY_KINDS,
};

struct ledger_totals {
    uint64_t number[MEMORY_KINDS], bytes[MEMORY_KINDS];
};

struct entry {
    uint64_t key; /* the address or handle; never 0 */
    uint64_t bytes;
    CUcontext context;
    uint32_t kind;
    uint32_t references; /* HANDLE: owners and mappings; REDIRECTED, MANAGED: EVICTED or 0 */
    uint64_t
        physical_or_generation; /* a handle or mapping: the physical memory it stands for; an address: which use of it */
};

#define ENTRY_EVICTED 1 /* moved off the device, and not restored since */

static inline bool is_unmovable(uint32_t kind) {
    return kind != MEMORY_REDIRECTED && kind != MEMORY_MANAGED && kind != MEMORY_SWAPPED;
}

enum ledger_table { LEDGER_ADDRESSES, LEDGER_HANDLES, LEDGER_ARRAYS, LEDGER_MAPPINGS, LEDGER_GRAPHS, LEDGER_TABLES };

bool ledger_add(enum ledger_table table, const struct entry *entry);
bool ledger_find(enum ledger_table table, uint64_t key, struct entry *found);
bool ledger_remove(enum ledger_table table, uint64_t key, struct entry *taken);
bool ledger_change_references(uint64_t handle, int change,
                              struct entry *gone); /* true: nothing refers to it any more */
/* Copies of the wanted entries, to be freed; their number, 0 also when there is no memory for that. */
size_t ledger_list(enum ledger_table table, bool (*wanted)(const struct entry *entry), struct entry **list);
bool ledger_set_flag(const struct entry *entry,
                     uint32_t flag); /* of ADDRESSES; false: it is gone, or marked so already */
/* Bytes that went with it; adds to the others what of them was pinned, and what was evicted. */
uint64_t ledger_drop_context(CUcontext context, uint64_t *unmovable, uint64_t *evicted);
void ledger_sum(struct ledger_totals *sum);
void ledger_after_fork(void);

bool account_reserve(uint64_t bytes, bool unmovable); /* false: a limit forbids it; logged */
bool account_would_fit(uint64_t bytes);
void account_mark_unmovable(uint64_t bytes); /* of what is reserved already */
void account_note_evicted(int64_t bytes);    /* off the device, or back (negative) */
uint64_t account_resident(void);
void account_release(uint64_t bytes, bool unmovable);
void account_attach_client_page(struct gpushare_client *client, int file); /* agent: another client page from now on */
void account_update_slot(void); /* agent: the coordinator may have given another slot */
void account_publish_turn(const struct gpushare_turn *turn,
                          uint64_t now); /* agent: what its siblings are to see of it */
uint32_t account_own_slot(void);
void account_apparent_memory(uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free);
void account_after_fork(void);
extern pthread_mutex_t account_lock;

bool reserve_memory(uint64_t bytes, bool unmovable); /* memory.c: account_reserve, after giving back what can be */
CUresult memory_release(const struct entry *entry);
void memory_unaccount(const struct entry *entry); /* it is no longer allocated */

#include "memory/mode.h"

CUresult deferred_add(const struct entry *entry, CUstream stream);
uint64_t deferred_drop_context(CUcontext context, uint64_t *unmovable, uint64_t *evicted);
void deferred_try_free(void); /* give back memory whose stream has finished with it, unless another thread is at it */
void deferred_free_completed(
    void);                 /* the same, and wait for that thread: what has been finished with is free afterwards */
bool deferred_drain(void); /* wait for all of it; false: there was none */
bool deferred_any(void);
void deferred_after_fork(void);

void graphs_drop_context(CUcontext context);
bool graph_memory_reserve(uint64_t bytes); /* false: a limit forbids it */
void graph_memory_update(uint64_t ended);  /* a graph of so many bytes has ended, or memory was trimmed */
void graph_memory_add(CUgraphExec graph, CUcontext context, uint64_t bytes);
uint64_t graph_memory_remove(CUgraphExec graph); /* its bytes */
uint64_t graph_bytes(void);                      /* bytes that graphs allocate */
void graphs_after_fork(void);

#endif
