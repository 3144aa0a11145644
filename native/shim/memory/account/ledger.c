/* The ledger: the program's allocations, by address or handle. Open addressing in shards with a lock each, so that
 * the cost does not depend on the number of entries, and threads seldom meet. */
#include "memory/account/account.h"

#include <stdlib.h>

#define SHARDS 16 /* a power of two */
#define MIN_ROOM 64

struct shard {
    pthread_mutex_t lock;
    struct entry *entries; /* key 0: empty */
    uint64_t count, room;  /* room: 0 or a power of two, at most 3/4 used */
};

static struct shard tables[LEDGER_TABLES][SHARDS] = {
    [0 ... LEDGER_TABLES - 1] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}},
};

/* Addresses are aligned and handles are small: the high bits of the product depend on all of them. */
static uint64_t hash(uint64_t key) {
    uint64_t product = key * 0x9e3779b97f4a7c15ull;
    return product ^ product >> 32;
}

static struct shard *shard_of(enum ledger_table table, uint64_t key) {
    return &tables[table][hash(key) >> 60 & (SHARDS - 1)];
}

static struct entry *slot_of(struct shard *shard, uint64_t key) {
    if (!shard->room)
        return NULL;
    uint64_t mask = shard->room - 1, at = hash(key) & mask;
    while (shard->entries[at].key && shard->entries[at].key != key)
        at = (at + 1) & mask;
    return &shard->entries[at];
}

static bool make_room(struct shard *shard) {
    if ((shard->count + 1) * 4 <= shard->room * 3)
        return true;
    struct shard grown = {.room = shard->room ? shard->room * 2 : MIN_ROOM};
    grown.entries = calloc(grown.room, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    for (uint64_t i = 0; i < shard->room; i++)
        if (shard->entries[i].key)
            *slot_of(&grown, shard->entries[i].key) = shard->entries[i];
    free(shard->entries);
    shard->entries = grown.entries;
    shard->room = grown.room;
    return true;
}

/* Close the gap, so that no search ends early: move each entry that may come nearer to its place. */
static void remove_at(struct shard *shard, struct entry *entry) {
    uint64_t mask = shard->room - 1, gap = (uint64_t)(entry - shard->entries);
    for (uint64_t i = (gap + 1) & mask; shard->entries[i].key; i = (i + 1) & mask) {
        uint64_t home = hash(shard->entries[i].key) & mask;
        if (((i - home) & mask) >= ((i - gap) & mask)) {
            shard->entries[gap] = shard->entries[i];
            gap = i;
        }
    }
    shard->entries[gap].key = 0;
    shard->count--;
}

bool ledger_add(enum ledger_table table, const struct entry *entry) {
    struct shard *shard = shard_of(table, entry->key);
    pthread_mutex_lock(&shard->lock);
    bool room = make_room(shard);
    if (room) {
        struct entry *slot = slot_of(shard, entry->key);
        shard->count += slot->key == 0;
        *slot = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    if (!room)
        log_once(LOG_ERROR, "The host is out of memory, so an allocation is no longer counted or moved.");
    return room;
}

bool ledger_find(enum ledger_table table, uint64_t key, struct entry *found) {
    struct shard *shard = shard_of(table, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *slot = key ? slot_of(shard, key) : NULL;
    bool is_known = slot && slot->key == key;
    if (is_known)
        *found = *slot;
    pthread_mutex_unlock(&shard->lock);
    return is_known;
}

bool ledger_remove(enum ledger_table table, uint64_t key, struct entry *removed) {
    struct shard *shard = shard_of(table, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *slot = key ? slot_of(shard, key) : NULL;
    bool is_known = slot && slot->key == key;
    if (is_known) {
        *removed = *slot;
        remove_at(shard, slot);
    }
    pthread_mutex_unlock(&shard->lock);
    return is_known;
}

bool ledger_change_references(uint64_t handle, int change, struct entry *gone) {
    struct shard *shard = shard_of(LEDGER_HANDLES, handle);
    bool last = false;
    pthread_mutex_lock(&shard->lock);
    struct entry *slot = handle ? slot_of(shard, handle) : NULL;
    if (slot && slot->key == handle) {
        slot->references += (uint32_t)change;
        last = slot->references == 0;
        if (last) {
            *gone = *slot;
            remove_at(shard, slot);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return last;
}

bool ledger_set_place(const struct entry *entry, uint32_t place) {
    struct shard *shard = shard_of(LEDGER_ADDRESSES, entry->key);
    pthread_mutex_lock(&shard->lock);
    struct entry *slot = slot_of(shard, entry->key);
    bool is_changed = slot && slot->key == entry->key &&
                      slot->physical_or_generation == entry->physical_or_generation && slot->references != place;
    if (is_changed)
        slot->references = place;
    pthread_mutex_unlock(&shard->lock);
    return is_changed;
}

size_t ledger_list(enum ledger_table table, bool (*wanted)(const struct entry *entry), struct entry **list) {
    size_t count = 0, room = 0;
    *list = NULL;
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &tables[table][i];
        pthread_mutex_lock(&shard->lock);
        if (room < count + shard->count) {
            room = 2 * (count + shard->count);
            struct entry *grown = realloc(*list, room * sizeof *grown);
            if (!grown) {
                pthread_mutex_unlock(&shard->lock);
                break; /* the entries so far are enough */
            }
            *list = grown;
        }
        for (uint64_t at = 0; at < shard->room; at++)
            if (shard->entries[at].key && wanted(&shard->entries[at]))
                (*list)[count++] = shard->entries[at];
        pthread_mutex_unlock(&shard->lock);
    }
    return count;
}

void entry_sums_add(struct entry_sums *sums, const struct entry *entry) {
    bool is_stuck = is_unmovable(entry->kind);
    sums->bytes += entry->bytes;
    sums->unmovable += is_stuck ? entry->bytes : 0;
    sums->evicted += !is_stuck && entry->references == ENTRY_EVICTED ? entry->bytes : 0;
    sums->on_host += !is_stuck && entry->references ? entry->bytes : 0;
}

/* Physical memory of the virtual-memory interface belongs to no context and stays. */
void ledger_drop_context(CUcontext context, struct entry_sums *ended) {
    for (int table = 0; table < LEDGER_TABLES; table++) {
        if (table == LEDGER_HANDLES || table == LEDGER_MAPPINGS)
            continue;
        for (int i = 0; i < SHARDS; i++) {
            struct shard *shard = &tables[table][i];
            pthread_mutex_lock(&shard->lock);
            for (uint64_t at = 0; at < shard->room;) {
                struct entry *entry = &shard->entries[at];
                if (!entry->key || entry->context != context) {
                    at++;
                    continue;
                }
                entry_sums_add(ended, entry);
                pool_figures_remove(entry->pool, entry->bytes);
                remove_at(shard, entry); /* another entry may have moved here: examine it as well */
            }
            pthread_mutex_unlock(&shard->lock);
        }
    }
}

/* Names and mappings of physical memory stand for memory that counts once. */
void ledger_sum(struct ledger_totals *sum) {
    for (int table = 0; table < LEDGER_TABLES; table++)
        for (int i = 0; i < SHARDS && table != LEDGER_MAPPINGS; i++) {
            struct shard *shard = &tables[table][i];
            pthread_mutex_lock(&shard->lock);
            for (uint64_t at = 0; at < shard->room; at++) {
                struct entry *entry = &shard->entries[at];
                if (!entry->key || entry->kind >= MEMORY_KINDS || (table == LEDGER_HANDLES && !entry->bytes))
                    continue;
                sum->number[entry->kind]++;
                sum->bytes[entry->kind] += entry->bytes;
            }
            pthread_mutex_unlock(&shard->lock);
        }
}

void ledger_after_fork(void) {
    for (int table = 0; table < LEDGER_TABLES; table++)
        for (int i = 0; i < SHARDS; i++)
            tables[table][i] = (struct shard){.lock = PTHREAD_MUTEX_INITIALIZER};
}
