/* Contents of blocks on their way, in both directions: a few copies at a time are under way, so that the link always has its
 * next one while blocks are mapped or unmapped, and while what has come is carried on.
 *
 * To pinned memory and from it they go straight; else through pinned buffers, which are filled or emptied here. A block
 * goes off the device, or counts as come, when the last of its copies has arrived and none has failed. */
#include "swap.h"

#include <stdlib.h>
#include <string.h>

#define STAGE (8ull << 20)
#define FLIGHTS 4

static struct flight {
    struct block *block; /* NULL: none is under way here */
    CUevent passed;
    CUstream stream;
    struct host *stage; /* made when first needed */
    char *to;           /* where the stage's contents belong; NULL: nowhere */
    uint64_t bytes;
    bool out, last;
    CUdeviceptr borrowed; /* a mapping for this alone; 0: none */
} flights[FLIGHTS];

static unsigned turn;
static CUcontext of; /* the events' */
static uint64_t arrived;

static void keep_here(struct block *block) {
    log_once(LOG_ERROR, "memory could not be moved off the device: it stays there");
    host_put(block->copy);
    block->copy = NULL;
    block->fixed = true;
}

static void gone_out(struct block *block) {
    if (!block->broken)
        block_go(block);
    if (block->here)
        keep_here(block);
    else
        arrived += block->bytes;
}

static void come_in(struct block *block) {
    if (block->broken) {
        log_once(LOG_ERROR, "memory did not arrive on the device: it is copied again");
        return; /* its copy is kept */
    }
    block_came(block);
    host_put(block->copy);
    block->copy = NULL;
    arrived += block->bytes;
}

static void give_back(CUdeviceptr address, uint64_t bytes) {
    REAL(cuMemUnmap)(address, bytes);
    REAL(cuMemAddressFree)(address, bytes);
}

static void land(struct flight *flight) {
    struct block *block = flight->block;
    if (!block)
        return;
    flight->block = NULL;
    bool passed = REAL(cuEventSynchronize)(flight->passed) == CUDA_SUCCESS;
    if (!passed)
        REAL(cuStreamSynchronize)(flight->stream); /* what it copies to or from is used again */
    else if (flight->to)
        memcpy(flight->to, flight->stage->at, flight->bytes);
    block->broken = block->broken || !passed;
    if (!flight->last)
        return;
    if (flight->borrowed)
        give_back(flight->borrowed, block->bytes);
    (flight->out ? gone_out : come_in)(block);
}

static void land_all(void) {
    for (int i = 0; i < FLIGHTS; i++)
        land(&flights[turn++ % FLIGHTS]); /* the oldest first */
}

uint64_t copies_end(void) {
    land_all();
    uint64_t bytes = arrived;
    arrived = 0;
    return bytes;
}

static void change_context(CUcontext context) {
    land_all();
    for (int i = 0; i < FLIGHTS; i++) {
        if (flights[i].passed)
            REAL(cuEventDestroy_v2)(flights[i].passed);
        flights[i].passed = NULL;
    }
    of = context;
}

/* The context is current. NULL: the driver has no event, or we no memory. */
static struct flight *take(CUcontext context, bool staged) {
    if (of != context)
        change_context(context);
    struct flight *flight = &flights[turn++ % FLIGHTS];
    land(flight);
    if (!flight->passed &&
        REAL(cuEventCreate)(&flight->passed, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
        flight->passed = NULL;
        return NULL;
    }
    if (staged && !flight->stage)
        flight->stage = host_stage(STAGE);
    if (staged && flight->stage)
        host_pin(flight->stage, context);
    return staged && !flight->stage ? NULL : flight;
}

/* Where the block can be reached for copying: its own place, or one that is borrowed for that. */
static bool reach(struct block *block, CUdevice device, CUdeviceptr *address, CUdeviceptr *borrowed) {
    *borrowed = 0;
    for (struct mapping *mapping = block->mappings; mapping; mapping = mapping->next)
        if (mapping->bytes == block->bytes && mapping->accesses &&
            mapping->access[0].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE &&
            mapping->access[0].location.id == device) {
            *address = mapping->address;
            return true;
        }
    CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (REAL(cuMemAddressReserve)(address, block->bytes, 0, 0, 0) != CUDA_SUCCESS)
        return false;
    if (REAL(cuMemMap)(*address, block->bytes, 0, block->handle, 0) != CUDA_SUCCESS) {
        REAL(cuMemAddressFree)(*address, block->bytes);
        return false;
    }
    *borrowed = *address;
    return REAL(cuMemSetAccess)(*address, block->bytes, &access, 1) == CUDA_SUCCESS;
}

static bool ask(struct lane *lane, struct flight *flight, CUdeviceptr device, void *there, bool out) {
    void *through = flight->to ? flight->stage->at : there;
    if (flight->to && !out)
        memcpy(through, there, flight->bytes);
    CUresult result = out ? REAL(cuMemcpyDtoHAsync_v2)(through, device, flight->bytes, lane->stream)
                          : REAL(cuMemcpyHtoDAsync_v2)(device, through, flight->bytes, lane->stream);
    return result == CUDA_SUCCESS && REAL(cuEventRecord)(flight->passed, lane->stream) == CUDA_SUCCESS;
}

bool copy_begin(struct lane *lane, struct block *block, bool out) {
    struct host *host = block->copy;
    CUdeviceptr address, borrowed;
    uint64_t most_bytes = host->pinned ? host->bytes : STAGE;
    bool well = reach(block, lane->device, &address, &borrowed);
    block->broken = false;
    for (uint64_t at = 0; well && at < block->bytes; at += most_bytes) {
        struct flight *flight = take(lane->context, !host->pinned);
        char *there = (char *)host->at + at;
        if (!(well = flight != NULL))
            break;
        flight->bytes = min_u64(most_bytes, block->bytes - at);
        flight->to = host->pinned ? NULL : there;
        if (!(well = ask(lane, flight, address + at, there, out)))
            break;
        flight->to = out ? flight->to : NULL;
        flight->out = out;
        flight->stream = lane->stream;
        flight->last = at + flight->bytes == block->bytes;
        flight->borrowed = borrowed;
        flight->block = block;
    }
    if (well)
        return true;
    land_all();
    lane->busy = true; /* what was asked for without being marked may be under way too */
    lanes_record();
    lanes_wait();
    if (borrowed)
        give_back(borrowed, block->bytes);
    if (out)
        keep_here(block);
    return false;
}

/* Its events went with it; nothing is under way while a context ends. */
void copies_forget(CUcontext context) {
    for (int i = 0; i < FLIGHTS; i++) {
        if (of == context)
            flights[i].passed = NULL;
        if (flights[i].stage && flights[i].stage->pinned == context)
            flights[i].stage->pinned = NULL;
    }
    of = of == context ? NULL : of;
}

void copies_after_fork(void) {
    memset(flights, 0, sizeof flights); /* left to the parent's heap image */
    of = NULL;
    arrived = 0;
}
