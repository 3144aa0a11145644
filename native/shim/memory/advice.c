/* Advice on where unified memory belongs: memory of online clients on the device, memory of offline clients wherever
 * it is. The driver evicts the memory of offline clients first. A client with a turn limit has the advice of the class
 * offline, because page faults would take the memory above its limit back to the device. */
#include "memory/memory.h"

#include <stdlib.h>

#define MIN_ADVISED_BYTES 65536

static struct pending unadvised = {.lock = PTHREAD_MUTEX_INITIALIZER};

enum class { ADVISED_ONLINE, ADVISED_OFFLINE };

/* The class of the last pass over all memory, and copies of the entries that still wait for its advice. A program may
 * pause only for so long as a few calls take, so a pass continues where it ended. Only the agent uses it. */
static struct {
    enum class class;
    struct entry *waiting;
    size_t count;
} pass;

void pending_add(struct pending *pending, CUdeviceptr address, size_t bytes) {
    pthread_mutex_lock(&pending->lock);
    if (pending->count < MAX_PENDING)
        pending->list[pending->count++] = (struct entry){.key = address, .bytes = bytes};
    pthread_mutex_unlock(&pending->lock);
}

bool pending_find(const struct entry *allocation, struct entry *found) {
    return ledger_find(LEDGER_ADDRESSES, allocation->key, found) && found->kind == MEMORY_REDIRECTED &&
           found->bytes == allocation->bytes;
}

static void give_advice(CUdeviceptr address, size_t bytes, int advice, CUdevice device) {
    if (REAL(cuMemAdvise)(address, bytes, advice, device) != CUDA_SUCCESS)
        log_once(LOG_INFO, "could not advise the driver where memory belongs");
}

/* TGS: pages of guaranteed clients stay on the device, and pages of opportunistic ones are evicted and accessed
 * where they are. Advice is an operation of the legacy stream, so it waits until blocking streams are idle and capture
 * nothing. The context is current. `again`: the memory may have the advice of the other class. False: it must wait. */
static bool advise(CUdeviceptr address, size_t bytes, bool again) {
    if (bytes < MIN_ADVISED_BYTES)
        return true;
    RELAXED_MODE;
    CUdevice device;
    if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
        return true;
    queries_lock();
    bool offline = account_may_stay_on_host(); /* under the lock, so that the newest class advises last */
    bool is_due = blocking_streams_are_idle();
    if (is_due && again)
        give_advice(address, bytes, offline ? CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION : CU_MEM_ADVISE_UNSET_ACCESSED_BY,
                    device);
    if (is_due)
        give_advice(address, bytes, offline ? CU_MEM_ADVISE_SET_ACCESSED_BY : CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
                    device);
    queries_unlock();
    return is_due;
}

/* Return false if the allocation must wait longer. */
static bool advise_late(const struct entry *allocation, bool again) {
    struct entry found;
    if (!pending_find(allocation, &found) || !transfer_begin(found.context))
        return true;
    bool is_advised = advise((CUdeviceptr)found.key, found.bytes, again);
    transfer_end();
    return is_advised;
}

static bool may_have_advice(const struct entry *entry) {
    return entry->kind == MEMORY_REDIRECTED && entry->bytes >= MIN_ADVISED_BYTES;
}

static enum class wanted_class(void) {
    return account_may_stay_on_host() ? ADVISED_OFFLINE : ADVISED_ONLINE;
}

bool advice_class_has_changed(void) {
    return pass.count || pass.class != wanted_class();
}

/* Memory that is allocated during a pass has the advice of the newest class. */
void advice_give_for_class(void) {
    enum class class = wanted_class();
    if (pass.class != class) {
        free(pass.waiting);
        pass.class = class;
        pass.count = ledger_list(LEDGER_ADDRESSES, may_have_advice, &pass.waiting);
    }
    while (pass.count && advise_late(&pass.waiting[pass.count - 1], true))
        pass.count--;
}

void advice_give_pending(void) {
    if (!unadvised.count)
        return;
    pthread_mutex_lock(&unadvised.lock);
    for (unsigned i = 0; i < unadvised.count;)
        if (advise_late(&unadvised.list[i], false))
            unadvised.list[i] = unadvised.list[--unadvised.count];
        else
            i++;
    pthread_mutex_unlock(&unadvised.lock);
}

void advice_give(CUdeviceptr address, size_t bytes) {
    if (!advise(address, bytes, false))
        pending_add(&unadvised, address, bytes);
}

void advice_after_fork(void) {
    pthread_mutex_init(&unadvised.lock, NULL);
    unadvised.count = 0;
    pass.waiting = NULL; /* left to the parent's heap image */
    pass.count = 0;
}
