/* The memory that the client has allocated, what it may allocate, and its apparent sizes.
 *
 * Each process of the client writes its own slot of the client page; the sum over the slots is the client's. A
 * process adds first and sums then: two processes at the same time may both be refused, but never both be admitted. */
#include "channel/channel.h"
#include "memory/account/mode.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define GROWTH_PARTS 16 /* the coordinator is rung when memory has grown by this part of the device within a turn */

pthread_mutex_t account_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t own, own_unmovable, own_on_host, own_leaving;
static uint64_t own_unmade;  /* bytes of blocks that were never on the device */
static uint64_t own_waiting; /* bytes of allocations that wait for room */
static uint64_t own_rung;    /* bytes at the begin of the turn, or at the last ring for growth */
static bool is_in_turn;
static int64_t own_evicted; /* below 0 for the moment in which a release overtakes the entry of the eviction */
static uint32_t own_slot;
static bool is_pinned;

static struct device_account {
    uint64_t placed; /* bytes whose device is known, of `own`; the other figures are parts of them */
    uint64_t unmovable, unmade, waiting;
    int64_t evicted;
} devices[MAX_DEVICES], no_device;

static uint64_t client_sum(void) {
    uint64_t sum = 0;
    uint32_t last = shim.client ? __atomic_load_n(&shim.client->last_slot, __ATOMIC_SEQ_CST) : 0;
    for (uint32_t i = 0; shim.client && i <= last && i < GPUSHARE_SLOTS; i++)
        sum += __atomic_load_n(&shim.client->slots[i].allocated, __ATOMIC_SEQ_CST);
    return sum;
}

/* Between turns, no other client can get the room of bytes that wait for room. In a turn, their room is reserved, so they
 * count as resident. */
static uint64_t unmade_with(uint64_t unmade, uint64_t waiting) {
    return unmade + (is_in_turn ? 0 : waiting);
}

static uint64_t unmade_bytes(void) {
    return unmade_with(own_unmade, own_waiting);
}

static uint64_t resident_of(uint64_t bytes, uint64_t unmade, int64_t evicted) {
    uint64_t elsewhere = unmade + (evicted <= 0 ? 0 : (uint64_t)evicted);
    return elsewhere < bytes ? bytes - elsewhere : 0;
}

/* Unified memory has no query of where it is: everything that was not evicted counts, as an upper bound. */
static uint64_t resident_bytes(void) {
    return resident_of(own, unmade_bytes(), own_evicted);
}

static uint64_t resident_on(const struct device_account *device) {
    return resident_of(device->placed, unmade_with(device->unmade, device->waiting), device->evicted);
}

static struct device_account *device_row(int device) {
    return device == ANY_DEVICE ? &no_device : &devices[device];
}

/* account_lock is held. */
static void publish_device(int number) {
    if (number == ANY_DEVICE)
        return;
    const struct device_account *device = &devices[number];
    struct gpushare_device_memory *row = &the_page()->report.devices[number];
    PAGE_STORE(row->allocated, device->placed);
    PAGE_STORE(row->unmovable, is_pinned ? device->placed : device->unmovable);
    PAGE_STORE(row->resident, resident_on(device));
    PAGE_STORE(row->unmade, min_u64(unmade_with(device->unmade, device->waiting), device->placed));
}

static void publish_devices(void) {
    for (int i = 0; i < shim.device_count; i++)
        publish_device(i);
}

static void publish(void) {
    struct gpushare_report *report = &the_page()->report;
    if (shim.client)
        __atomic_store_n(&shim.client->slots[own_slot].allocated, own, __ATOMIC_SEQ_CST);
    PAGE_STORE(report->allocated, own);
    PAGE_STORE(report->unmovable, is_pinned ? own : own_unmovable);
    PAGE_STORE(report->resident, resident_bytes());
    PAGE_STORE(report->unmade, min_u64(unmade_bytes(), own));
}

static void log_refusal(uint64_t bytes, uint64_t sum, uint64_t limit, uint64_t backing) {
    /* PyTorch adds this advice to its own message */
    const char *advice = shim.mode->number == GPUSHARE_MEMORY_UNIFIED
                             ? " Expandable segments (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True) do not help in "
                               "memory mode unified: their memory never leaves the device."
                             : "";
    PAGE_ADD(the_page()->report.refused_allocations, 1);
    if (limit)
        refusal_log(
            bytes,
            "An allocation of %s was refused: %s are allocated and the memory limit is %s "
            "(to raise it: %%gpushare quota memory=%lluMiB in a notebook, or jupyter gpushare run --memory %lluMiB).%s",
            size_text(bytes).text, size_text(sum).text, size_text(limit).text,
            (unsigned long long)((sum + bytes + (1 << 20) - 1) >> 20),
            (unsigned long long)((sum + bytes + (1 << 20) - 1) >> 20), advice);
    else
        refusal_log(
            bytes,
            "An allocation of %s was refused: %s are allocated, and device and host memory together can back only %s "
            "of this program. A higher quota does not help: other clients must free memory, or the memory limit of "
            "this program's container or service must rise (see jupyter gpushare doctor).%s",
            size_text(bytes).text, size_text(sum).text, size_text(backing).text, advice);
}

/* account_lock is held. Return whether the coordinator should read the memory before its periodic read, because clients
 * that were colocated while they fitted on the device may not fit any more. */
static bool has_grown(void) {
    uint64_t step = PAGE_LOAD(the_page()->control.memory_total) / GROWTH_PARTS;
    if (!is_in_turn || !step || own < own_rung + step)
        return false;
    own_rung = own;
    return true;
}

bool account_reserve(uint64_t bytes, bool unmovable) {
    struct gpushare_control *control = &the_page()->control;
    pthread_mutex_lock(&account_lock);
    own += bytes;
    publish();
    uint64_t limit = PAGE_LOAD(control->memory_limit), backing = PAGE_LOAD(control->memory_backing), sum = client_sum();
    bool over_limit = limit && sum > limit, over_backing = sum > backing;
    if (over_limit || over_backing) {
        own -= bytes;
        publish();
    } else if (unmovable) {
        own_unmovable += bytes;
        publish();
    }
    bool rings = has_grown();
    pthread_mutex_unlock(&account_lock);
    if (rings)
        outbox_post(OUTBOX_CHANGED);
    if (over_limit || over_backing)
        log_refusal(bytes, sum - bytes, over_limit ? limit : 0, backing);
    return !over_limit && !over_backing;
}

bool account_would_fit(uint64_t bytes) {
    struct gpushare_control *control = &the_page()->control;
    uint64_t limit = PAGE_LOAD(control->memory_limit);
    pthread_mutex_lock(&account_lock);
    uint64_t sum = client_sum();
    pthread_mutex_unlock(&account_lock);
    return (!limit || sum + bytes <= limit) && sum + bytes <= PAGE_LOAD(control->memory_backing);
}

void account_mark_unmovable(int device, int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    own_unmovable += (uint64_t)bytes;
    device_row(device)->unmovable += (uint64_t)bytes;
    publish();
    publish_device(device);
    pthread_mutex_unlock(&account_lock);
}

void account_pin(void) {
    pthread_mutex_lock(&account_lock);
    is_pinned = true;
    publish();
    publish_devices();
    pthread_mutex_unlock(&account_lock);
}

void account_note_placed(int device, int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    devices[device].placed += (uint64_t)bytes;
    publish_device(device);
    pthread_mutex_unlock(&account_lock);
}

void account_note_evicted(int device, int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    own_evicted += bytes;
    device_row(device)->evicted += bytes;
    publish();
    publish_device(device);
    pthread_mutex_unlock(&account_lock);
}

void account_note_unmade(int device, int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    own_unmade += (uint64_t)bytes;
    devices[device].unmade += (uint64_t)bytes;
    publish();
    publish_device(device);
    pthread_mutex_unlock(&account_lock);
}

void account_note_waiting(int device, int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    own_waiting += (uint64_t)bytes;
    devices[device].waiting += (uint64_t)bytes;
    devices[device].placed += (uint64_t)bytes;
    publish();
    publish_device(device);
    pthread_mutex_unlock(&account_lock);
}

void account_set_in_turn(bool in_turn) {
    if (in_turn == is_in_turn) /* only the agent changes it */
        return;
    pthread_mutex_lock(&account_lock);
    is_in_turn = in_turn;
    own_rung = own;
    publish();
    publish_devices();
    pthread_mutex_unlock(&account_lock);
}

/* account_lock is held. The coordinator takes what is reported for memory that the cgroup counts already. */
static void publish_on_host(void) {
    PAGE_STORE(the_page()->report.host_pageable, own_on_host > own_leaving ? own_on_host - own_leaving : 0);
}

void account_note_on_host(int64_t bytes) {
    pthread_mutex_lock(&account_lock);
    own_on_host += (uint64_t)bytes;
    publish_on_host();
    pthread_mutex_unlock(&account_lock);
}

void account_note_leaving(int64_t bytes, uint64_t leaving) {
    pthread_mutex_lock(&account_lock);
    own_on_host += (uint64_t)bytes;
    own_leaving = leaving;
    publish_on_host();
    pthread_mutex_unlock(&account_lock);
}

uint64_t account_max_eviction(void) {
    uint64_t limit = PAGE_LOAD(the_page()->control.evicted_limit);
    pthread_mutex_lock(&account_lock);
    uint64_t evicted = own_evicted <= 0 ? 0 : (uint64_t)own_evicted;
    pthread_mutex_unlock(&account_lock);
    return limit > evicted ? limit - evicted : 0;
}

/* A turn without a coordinator has the device to itself. */
uint64_t account_turn_limit(void) {
    uint64_t limit = atomic_load(&shim.without_coordinator) ? 0 : PAGE_LOAD(the_page()->control.turn_limit);
    return limit ? limit : UINT64_MAX;
}

bool account_may_stay_on_host(void) {
    return is_offline() || account_turn_limit() != UINT64_MAX;
}

uint64_t account_resident(void) {
    pthread_mutex_lock(&account_lock);
    uint64_t bytes = resident_bytes();
    pthread_mutex_unlock(&account_lock);
    return bytes;
}

void account_resident_by_device(uint64_t resident[MAX_DEVICES]) {
    uint64_t known = 0, all, count = (uint64_t)shim.device_count;
    pthread_mutex_lock(&account_lock);
    for (int i = 0; i < shim.device_count; i++)
        known += resident[i] = resident_on(&devices[i]);
    all = resident_bytes();
    pthread_mutex_unlock(&account_lock);
    for (int i = 0; i < shim.device_count; i++)
        resident[i] += all > known ? (all - known) / count : 0;
}

void account_release(uint64_t bytes, bool unmovable) {
    if (!bytes)
        return;
    pthread_mutex_lock(&account_lock);
    own -= bytes < own ? bytes : own;
    if (unmovable)
        own_unmovable -= bytes < own_unmovable ? bytes : own_unmovable;
    publish();
    pthread_mutex_unlock(&account_lock);
}

void account_release_entries(const struct entry_sums *ended) {
    if (ended->on_host)
        account_note_on_host(-(int64_t)ended->on_host);
    if (ended->evicted)
        account_note_evicted(ANY_DEVICE, -(int64_t)ended->evicted);
    account_release(ended->bytes - ended->unmovable, false);
    account_release(ended->unmovable, true);
}

void account_publish_turn(const struct gpushare_turn *turn, uint64_t now) {
    struct gpushare_slot *slot = &shim.client->slots[own_slot];
    PAGE_STORE(slot->turn, turn->turn);
    PAGE_STORE(slot->since_ns, turn->closed_ns);
    PAGE_STORE(slot->phase, turn->phase);
    PAGE_STORE(slot->seen, (uint32_t)(now / (1000 * NS_PER_MS)));
}

uint32_t account_own_slot(void) {
    return own_slot;
}

/* account_lock is held. The other processes include the slot in their sums before it has memory. */
static void take_slot(void) {
    uint32_t slot = PAGE_LOAD(the_page()->control.slot) % GPUSHARE_SLOTS, *last = &shim.client->last_slot;
    for (uint32_t seen = __atomic_load_n(last, __ATOMIC_SEQ_CST); seen < slot;)
        if (__atomic_compare_exchange_n(last, &seen, slot, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            break;
    own_slot = slot;
    publish();
}

static void leave_slot(void) {
    struct gpushare_slot *slot = &shim.client->slots[own_slot];
    __atomic_store_n(&slot->allocated, 0, __ATOMIC_SEQ_CST);
    PAGE_STORE(slot->phase, GPUSHARE_OUT);
}

/* Attach the client page that the coordinator has passed. The previous one may be the very same memory. */
void account_attach_client_page(struct gpushare_client *client, int file) {
    pthread_mutex_lock(&account_lock);
    struct gpushare_client *before = shim.client;
    int file_before = shim.client_fd;
    leave_slot();
    shim.client = client;
    shim.client_fd = file;
    take_slot();
    pthread_mutex_unlock(&account_lock);
    munmap(before, GPUSHARE_CLIENT_BYTES);
    fd_close(file_before);
}

void account_update_slot(void) {
    pthread_mutex_lock(&account_lock);
    if (PAGE_LOAD(the_page()->control.slot) % GPUSHARE_SLOTS != own_slot)
        leave_slot();
    take_slot();
    pthread_mutex_unlock(&account_lock);
}

/* Return one answer for every query: the total, and what can still be allocated of it. The total is the limit where a
 * client may have more memory than the device. */
void account_apparent_memory(uint64_t real_total, uint64_t real_free, uint64_t *total, uint64_t *free) {
    struct gpushare_control *control = &the_page()->control;
    uint64_t limit = PAGE_LOAD(control->memory_limit), apparent_total = PAGE_LOAD(control->memory_total),
             backing = PAGE_LOAD(control->memory_backing);
    pthread_mutex_lock(&account_lock);
    uint64_t sum = client_sum();
    pthread_mutex_unlock(&account_lock);
    *total = apparent_total ? apparent_total : limit ? limit : real_total;
    uint64_t bound = limit ? limit : *total;
    uint64_t capacity = shim.mode->capacity ? shim.mode->capacity() : UINT64_MAX;
    if (!shim.mode->is_unmovable && capacity == UINT64_MAX && limit > *total)
        *total = limit;
    bound = bound < capacity ? bound : capacity;
    bound = bound < backing ? bound : backing;
    uint64_t rest = bound > sum ? bound - sum : 0;
    if (shim.mode->is_unmovable && real_free < rest)
        rest = real_free;
    *free = rest < *total ? rest : *total;
}

void account_after_fork(void) {
    pthread_mutex_init(&account_lock, NULL);
    own = own_unmovable = own_on_host = own_leaving = own_rung = 0;
    own_evicted = 0;
    own_unmade = own_waiting = 0;
    memset(devices, 0, sizeof devices);
    own_slot = 0;
    is_in_turn = is_pinned = false;
}
