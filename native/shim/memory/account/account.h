/* The table of allocations, the account of the client's memory, figures of pools, and the log of refusals. */
#ifndef GPUSHARE_ACCOUNT_H
#define GPUSHARE_ACCOUNT_H

#include "driver/driver.h"

#pragma GCC visibility push(hidden)

enum memory_kind {
    MEMORY_REDIRECTED, /* asked for as device memory, made as unified memory */
    MEMORY_MANAGED,    /* asked for as unified memory */
    MEMORY_DEVICE,     /* plain device memory */
    MEMORY_POOLED,     /* plain device memory of a pool */
    MEMORY_HANDLE,     /* physical memory of the virtual-memory interface */
    MEMORY_ARRAY,
    MEMORY_SWAPPED, /* physical memory of the shim's own making, see swap/blocks.h */
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
    uint32_t references; /* HANDLE: owners and mappings; REDIRECTED, MANAGED: the place; GRAPH: launches */
    /* HANDLE: the physical memory of a handle or mapping. SWAPPED: the allocation or block. GRAPH: blocks of threads.
     * LEDGER_KERNELS: the library. Other kinds: a number that differs between two uses of one address. */
    uint64_t physical_or_generation;
};

/* Places of unified memory; 0: it has never been evicted.
 *
 * The driver keeps the host pages of restored memory until the memory is freed. The next eviction uses these pages
 * again. Source: open-gpu-kernel-modules 595.45.04, nvidia-uvm/uvm_va_block.c: block_populate_pages_cpu allocates the
 * pages that a block lacks, charged to the process's cgroup, and the end of the block frees them. */
#define ENTRY_EVICTED 1
#define ENTRY_RESTORED 2

/* Bytes of entries. */
struct entry_sums {
    uint64_t bytes, unmovable, evicted;
    uint64_t on_host; /* unified memory that has host pages */
};

void entry_sums_add(struct entry_sums *sums, const struct entry *entry);

enum ledger_table {
    LEDGER_ADDRESSES,
    LEDGER_HANDLES,
    LEDGER_ARRAYS,
    LEDGER_MAPPINGS,
    LEDGER_GRAPHS,
    LEDGER_KERNELS, /* of libraries, which have no bytes */
    LEDGER_TABLES
};

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
/* Change the place of an entry of ADDRESSES. False: it has been removed, or is in that place already. */
bool ledger_set_place(const struct entry *entry, uint32_t place);
void ledger_drop_context(CUcontext context, struct entry_sums *ended); /* adds what ended with the context */
void ledger_sum(struct ledger_totals *sum);
void ledger_after_fork(void);

/* --- refusal.c --- */

/* Log that so many bytes were refused, with the reason. */
__attribute__((format(printf, 2, 3))) void refusal_log(uint64_t bytes, const char *format, ...);
void refusal_recovered(uint64_t bytes); /* so many bytes were allocated: half of a refused size is enough */
void refusal_poll(uint64_t now);        /* agent: at least once in a while */
void refusal_after_fork(void);

/* --- account.c --- */

extern pthread_mutex_t account_lock;

bool account_reserve(uint64_t bytes, bool unmovable); /* false: a limit forbids it; logged */
bool account_would_fit(uint64_t bytes);
/* `device` is the place of a device in `shim.devices`, or ANY_DEVICE for memory whose device is not known. */
#define ANY_DEVICE (-1)
void account_mark_unmovable(int device, int64_t bytes); /* of what is reserved already; negative: no longer */
void account_pin(void);                                 /* all memory of the process is unmovable from now on */
void account_note_placed(int device, int64_t bytes);    /* reserved memory belongs to the device; negative: no longer */
void account_note_waiting(int device, int64_t bytes);   /* an allocation waits for room there; negative: no longer */
void account_note_unmade(int device, int64_t bytes);    /* it was never there; negative: now it is, or is gone */
void account_note_evicted(int device, int64_t bytes);   /* off the device; negative: back */
void account_note_on_host(int64_t bytes);               /* unified memory that gets host pages; negative: loses them */
void account_note_leaving(int64_t bytes, uint64_t leaving); /* the same, and the bytes whose host pages are to come */
uint64_t account_resident(void);
/* The same by device. Memory of no known device counts in equal parts on all devices. */
void account_resident_by_device(uint64_t resident[MAX_DEVICES]);
uint64_t account_turn_limit(void);   /* bytes that may be resident in a turn; UINT64_MAX: all */
bool account_may_stay_on_host(void); /* in a turn, where work reaches the memory over the link */
uint64_t account_max_eviction(void); /* bytes that may leave the device now */
void account_release(uint64_t bytes, bool unmovable);
void account_release_entries(const struct entry_sums *ended);
void account_apparent_memory(uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free);
uint32_t account_own_slot(void);
/* The agent calls these. */
void account_set_in_turn(bool in_turn); /* before the page shows it */
void account_attach_client_page(struct gpushare_client *client, int file);
void account_update_slot(void);                                            /* the page may have another slot */
void account_publish_turn(const struct gpushare_turn *turn, uint64_t now); /* in the slot, for siblings */
void account_after_fork(void);

/* --- pool_figures.c: what programs read about a pool of which the shim has put the memory elsewhere, and its place --- */

#define MAX_POOLS 1024 /* with figures at the same time */

uint16_t pool_figures_add(CUmemoryPool pool, uint64_t bytes); /* returns the number for `struct entry` */
uint16_t pool_figures_number(CUmemoryPool pool);              /* 0: the pool has no figures */
CUmemoryPool pool_figures_pool(uint16_t number);              /* NULL: none, or it has been destroyed */
void pool_figures_remove(uint16_t number, uint64_t bytes);
bool pool_figures_keep(uint16_t number, uint64_t bytes);        /* freed bytes; true: the pool is above its threshold */
void pool_figures_reuse(uint16_t number, uint64_t bytes);       /* kept bytes are in use again */
void pool_figures_remove_kept(uint16_t number, uint64_t bytes); /* kept bytes are released */
void pool_figures_trim(uint16_t number, uint64_t keep);     /* keep at most so many bytes, until the next allocation */
void pool_figures_surplus(uint64_t surplus[MAX_POOLS + 1]); /* kept bytes above the threshold of each pool */
uint64_t pool_figure(CUmemoryPool pool, int attribute);     /* bytes, in addition to the driver's own figure */
void pool_figures_set(CUmemoryPool pool, int attribute, uint64_t value); /* the program has set the attribute */
void pool_figures_drop(CUmemoryPool pool);                               /* the program has destroyed it */
void pool_figures_set_location(CUmemoryPool pool, const CUmemLocation *location);
bool pool_figures_location(CUmemoryPool pool, CUmemLocation *location); /* false: unknown */
void pool_figures_after_fork(void);

#pragma GCC visibility pop

#endif
