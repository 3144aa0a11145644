/* The ledger: what the program has allocated, by address or handle. Open addressing in shards with a lock each, so that
 * adding and taking cost the same however much there is, and threads seldom meet. */
#include "shim.h"

#include <stdlib.h>

#define SHARDS 16 /* a power of two */
#define FIRST_ROOM 64

struct shard {
    pthread_mutex_t lock;
    struct entry *entries; /* key 0: empty */
    uint64_t count, room;  /* room: 0 or a power of two, at most 3/4 used */
};

static struct shard books[BOOKS][SHARDS] = {
    [0 ... BOOKS - 1] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}},
};

/* Addresses are aligned and handles small: the product's high bits depend on all of them. */
static uint64_t hash(uint64_t key) {
    uint64_t product = key * 0x9e3779b97f4a7c15ull;
    return product ^ product >> 32;
}

static struct shard *shard_of(enum book book, uint64_t key) {
    return &books[book][hash(key) >> 60 & (SHARDS - 1)];
}

static struct entry *place_of(struct shard *shard, uint64_t key) {
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
    struct shard grown = {.room = shard->room ? shard->room * 2 : FIRST_ROOM};
    grown.entries = calloc(grown.room, sizeof *grown.entries);
    if (!grown.entries)
        return false;
    for (uint64_t i = 0; i < shard->room; i++)
        if (shard->entries[i].key)
            *place_of(&grown, shard->entries[i].key) = shard->entries[i];
    free(shard->entries);
    shard->entries = grown.entries;
    shard->room = grown.room;
    return true;
}

/* Close the gap, so that no search ends early: whatever may move nearer to its place does. */
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

bool ledger_add(enum book book, const struct entry *entry) {
    struct shard *shard = shard_of(book, entry->key);
    pthread_mutex_lock(&shard->lock);
    bool room = make_room(shard);
    if (room) {
        struct entry *place = place_of(shard, entry->key);
        shard->count += place->key == 0;
        *place = *entry;
    }
    pthread_mutex_unlock(&shard->lock);
    if (!room)
        log_once(LOG_ERROR, "out of host memory: an allocation is not in the ledger");
    return room;
}

bool ledger_find(enum book book, uint64_t key, struct entry *found) {
    struct shard *shard = shard_of(book, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *place = key ? place_of(shard, key) : NULL;
    bool known = place && place->key == key;
    if (known)
        *found = *place;
    pthread_mutex_unlock(&shard->lock);
    return known;
}

bool ledger_take(enum book book, uint64_t key, struct entry *taken) {
    struct shard *shard = shard_of(book, key);
    pthread_mutex_lock(&shard->lock);
    struct entry *place = key ? place_of(shard, key) : NULL;
    bool known = place && place->key == key;
    if (known) {
        *taken = *place;
        remove_at(shard, place);
    }
    pthread_mutex_unlock(&shard->lock);
    return known;
}

bool ledger_refer(uint64_t handle, int change, struct entry *gone) {
    struct shard *shard = shard_of(HANDLES, handle);
    bool last = false;
    pthread_mutex_lock(&shard->lock);
    struct entry *place = handle ? place_of(shard, handle) : NULL;
    if (place && place->key == handle) {
        place->references += (uint32_t)change;
        last = place->references == 0;
        if (last) {
            *gone = *place;
            remove_at(shard, place);
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return last;
}

bool ledger_mark(const struct entry *entry, uint32_t mark) {
    struct shard *shard = shard_of(ADDRESSES, entry->key);
    pthread_mutex_lock(&shard->lock);
    struct entry *place = place_of(shard, entry->key);
    bool changed = place && place->key == entry->key && place->of == entry->of && place->references != mark;
    if (changed)
        place->references = mark;
    pthread_mutex_unlock(&shard->lock);
    return changed;
}

size_t ledger_list(enum book book, bool (*wanted)(const struct entry *entry), struct entry **list) {
    size_t count = 0, room = 0;
    *list = NULL;
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &books[book][i];
        pthread_mutex_lock(&shard->lock);
        if (room < count + shard->count) {
            room = 2 * (count + shard->count);
            struct entry *grown = realloc(*list, room * sizeof *grown);
            if (!grown) {
                pthread_mutex_unlock(&shard->lock);
                break; /* those that are listed will do */
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

/* Physical memory of the virtual-memory interface belongs to no context and stays. */
uint64_t ledger_drop_context(CUcontext context, uint64_t *pinned, uint64_t *away) {
    uint64_t bytes = 0;
    for (int book = 0; book < BOOKS; book++) {
        if (book == HANDLES || book == MAPPINGS)
            continue;
        for (int i = 0; i < SHARDS; i++) {
            struct shard *shard = &books[book][i];
            pthread_mutex_lock(&shard->lock);
            for (uint64_t at = 0; at < shard->room;) {
                struct entry *entry = &shard->entries[at];
                if (!entry->key || entry->context != context) {
                    at++;
                    continue;
                }
                bytes += entry->bytes;
                if (is_pinned(entry->kind))
                    *pinned += entry->bytes;
                else if (entry->references == EVICTED)
                    *away += entry->bytes;
                remove_at(shard, entry); /* another may have moved here: look again */
            }
            pthread_mutex_unlock(&shard->lock);
        }
    }
    return bytes;
}

/* Names of physical memory, and mappings of it, stand for what is counted once. */
void ledger_sum(struct summary *sum) {
    for (int book = 0; book < BOOKS; book++)
        for (int i = 0; i < SHARDS && book != MAPPINGS; i++) {
            struct shard *shard = &books[book][i];
            pthread_mutex_lock(&shard->lock);
            for (uint64_t at = 0; at < shard->room; at++) {
                struct entry *entry = &shard->entries[at];
                if (!entry->key || entry->kind >= KINDS || (book == HANDLES && !entry->bytes))
                    continue;
                sum->number[entry->kind]++;
                sum->bytes[entry->kind] += entry->bytes;
            }
            pthread_mutex_unlock(&shard->lock);
        }
}

void ledger_after_fork(void) {
    for (int book = 0; book < BOOKS; book++)
        for (int i = 0; i < SHARDS; i++)
            books[book][i] = (struct shard){.lock = PTHREAD_MUTEX_INITIALIZER};
}
