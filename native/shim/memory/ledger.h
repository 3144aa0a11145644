/* The table of allocations, and the account of the client's memory. */
#ifndef GPUSHARE_LEDGER_H
#define GPUSHARE_LEDGER_H

#include "driver/driver.h"

#pragma GCC visibility push(hidden)

enum memory_kind {
    MEMORY_REDIRECTED, /* asked for as device memory, made as unified memory */
    MEMORY_MANAGED,    /* asked for as unified memory */
    MEMORY_DEVICE,     /* plain device memory */
    MEMORY_POOLED,     /* plain device memory of a pool */
    MEMORY_HANDLE,     /* physical memory of the virtual-memory interface */
    MEMORY_ARRAY,
    MEMORY_SWAPPED, /* physical memory of the shim's own making, see swap/swap.h */
    MEMORY_GRAPH,   /* no memory: what a launch of a graph counts as */
    MEMORY_KINDS,
};

static inline bool is_unmovable(uint32_t kind) {
    return kind != MEMORY_REDIRECTED && kind != MEMORY_MANAGED && kind != MEMORY_SWAPPED;
}

/* --- ledger.c --- */

struct entry {
    uint64_t key; /* the address or handle; never 0 */
    uint64_t bytes;
    CUcontext context;
    uint16_t kind;
    uint16_t pool;       /* of pool_figures.c: the pool that the program asked; 0: none, or the driver counts it */
    uint32_t references; /* HANDLE: owners and mappings; REDIRECTED, MANAGED: ENTRY_EVICTED or 0; GRAPH: launches */
    /* HANDLE: the physical memory of a handle or mapping; SWAPPED: the allocation or block; GRAPH: blocks of threads; other
     * kinds: a number that differs between two uses of one address. */
    uint64_t physical_or_generation;
};

#define ENTRY_EVICTED 1 /* evicted, and not restored since */

enum ledger_table { LEDGER_ADDRESSES, LEDGER_HANDLES, LEDGER_ARRAYS, LEDGER_MAPPINGS, LEDGER_GRAPHS, LEDGER_TABLES };

struct ledger_totals {
    uint64_t number[MEMORY_KINDS], bytes[MEMORY_KINDS];
};

bool ledger_add(enum ledger_table table, const struct entry *entry); /* false: no host memory; logged */
bool ledger_find(enum ledger_table table, uint64_t key, struct entry *found);
bool ledger_remove(enum ledger_table table, uint64_t key, struct entry *removed);
/* Return true and remove the entry if nothing refers to the handle any more. */
bool ledger_change_references(uint64_t handle, int change, struct entry *removed);
/* Return the number of copies in `list`, which the caller frees; 0 also when there is no memory for them. */
size_t ledger_list(enum ledger_table table, bool (*wanted)(const struct entry *entry), struct entry **list);
/* Change the references of an entry of ADDRESSES. False: it has been removed, or has that value already. */
bool ledger_set_flag(const struct entry *entry, uint32_t flag);
/* Return the bytes that ended with the context; add to the other two what of them was unmovable, and what was evicted. */
uint64_t ledger_drop_context(CUcontext context, uint64_t *unmovable, uint64_t *evicted);
void ledger_sum(struct ledger_totals *sum);
void ledger_after_fork(void);

/* --- refusal.c --- */

/* Log that so many bytes were refused, with the reason. */
__attribute__((format(printf, 2, 3))) void refusal_log(uint64_t bytes, const char *format, ...);
void refusal_recovered(uint64_t bytes); /* so many bytes were allocated */
void refusal_poll(uint64_t now);        /* agent: at least once in a while */
void refusal_after_fork(void);

/* --- account.c --- */

extern pthread_mutex_t account_lock;

bool account_reserve(uint64_t bytes, bool unmovable); /* false: a limit forbids it; logged */
bool account_would_fit(uint64_t bytes);
void account_mark_unmovable(int64_t bytes); /* of what is reserved already; negative: no longer */
void account_pin(void);                     /* all memory of the process is unmovable from now on */
void account_note_evicted(int64_t bytes);   /* off the device; negative: back */
uint64_t account_resident(void);
void account_release(uint64_t bytes, bool unmovable);
void account_apparent_memory(uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free);
uint32_t account_own_slot(void);
/* The agent calls these. */
void account_attach_client_page(struct gpushare_client *client, int file);
void account_update_slot(void);                                            /* the page may have another slot */
void account_publish_turn(const struct gpushare_turn *turn, uint64_t now); /* in the slot, for siblings */
void account_after_fork(void);

#pragma GCC visibility pop

#endif
