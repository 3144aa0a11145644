/* Program whose threads allocate and free at random, by several functions that allocate.
 * Usage: ledger_stress THREADS OPERATIONS ROUNDS MODE, with OPERATIONS operations in each thread.
 *
 * After each round, all threads stop; after the last round, everything is free. Then the program prints one line for
 * each "r" on standard input. Any other character starts the next round. The line has, in bytes: the program's own
 * records, the driver's sizes of the allocations, the charge that is due for them, and the used memory by cuMemGetInfo.
 * MODE is that of the shim. In mode "plain", the driver has device memory behind every allocation, and in other modes
 * only behind physical memory. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ALLOCATIONS 64
#define MAX_THREADS 64
#define GRANULE (2ull << 20)
#define RANGE_SIZE 12 /* CU_POINTER_ATTRIBUTE_RANGE_SIZE */

typedef unsigned long long address_t;

#define FUNCTIONS(X)                                                                                                   \
    X(cuInit, (unsigned))                                                                                              \
    X(cuDevicePrimaryCtxRetain, (void **, int))                                                                        \
    X(cuCtxSetCurrent, (void *))                                                                                       \
    X(cuCtxSynchronize, (void))                                                                                        \
    X(cuMemAlloc_v2, (address_t *, size_t))                                                                            \
    X(cuMemAllocPitch_v2, (address_t *, size_t *, size_t, size_t, unsigned))                                           \
    X(cuMemAllocManaged, (address_t *, size_t, unsigned))                                                              \
    X(cuMemAllocAsync, (address_t *, size_t, void *))                                                                  \
    X(cuMemAllocFromPoolAsync, (address_t *, size_t, void *, void *))                                                  \
    X(cuDeviceGetDefaultMemPool, (void **, int))                                                                       \
    X(cuMemFree_v2, (address_t))                                                                                       \
    X(cuMemFreeAsync, (address_t, void *))                                                                             \
    X(cuMemCreate, (address_t *, size_t, const void *, address_t))                                                     \
    X(cuMemRelease, (address_t))                                                                                       \
    X(cuMemAddressReserve, (address_t *, size_t, size_t, address_t, address_t))                                        \
    X(cuMemAddressFree, (address_t, size_t))                                                                           \
    X(cuMemMap, (address_t, size_t, size_t, address_t, address_t))                                                     \
    X(cuMemUnmap, (address_t, size_t))                                                                                 \
    X(cuMemGetAddressRange_v2, (address_t *, size_t *, address_t))                                                     \
    X(cuPointerGetAttribute, (void *, int, address_t))                                                                 \
    X(cuMemGetInfo_v2, (size_t *, size_t *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

enum kind { PLAIN, PITCH, MANAGED, ASYNC, POOL, PHYSICAL, MAPPED, KINDS };

struct allocation {
    address_t address, handle;
    size_t size; /* as the program counts: rows of pitched memory are rounded up */
    enum kind kind;
};

static struct allocation allocation[MAX_THREADS][MAX_ALLOCATIONS];
static void *context, *pool;
static int threads, operations, rounds;
static _Atomic long long operations_done;
static pthread_barrier_t barrier;

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}
#define CHECK(name, ...) check(name(__VA_ARGS__), #name)

static void release(struct allocation *entry, unsigned random) {
    if (entry->kind == PHYSICAL || entry->kind == MAPPED) {
        if (entry->kind == MAPPED) {
            CHECK(cuMemUnmap, entry->address, GRANULE);
            CHECK(cuMemAddressFree, entry->address, GRANULE);
        }
        if (entry->handle)
            CHECK(cuMemRelease, entry->handle);
    } else if ((entry->kind == ASYNC || entry->kind == POOL) && random % 2) {
        CHECK(cuMemFreeAsync, entry->address, NULL);
    } else {
        CHECK(cuMemFree_v2, entry->address);
    }
    memset(entry, 0, sizeof *entry);
}

/* A pool may serve an allocation with memory that is larger by an eighth. */
static void read_size(struct allocation *entry) {
    address_t base;
    size_t asked = entry->size;
    CHECK(cuMemGetAddressRange_v2, &base, &entry->size, entry->address);
    if (base != entry->address || entry->size < asked || entry->size - asked > asked / 8) {
        fprintf(stderr, "asked for %zu bytes, and has %zu\n", asked, entry->size);
        exit(1);
    }
}

static void create(struct allocation *entry, unsigned random) {
    static const int on_device[16] = {1 /* pinned */, 0, 1 /* on a device */, 0};
    entry->size = GRANULE;
    CHECK(cuMemCreate, &entry->handle, GRANULE, on_device, 0);
    if (entry->kind == PHYSICAL)
        return;
    CHECK(cuMemAddressReserve, &entry->address, GRANULE, 0, 0, 0);
    CHECK(cuMemMap, entry->address, GRANULE, 0, entry->handle, 0);
    if (random % 2) { /* the mapping keeps the memory */
        CHECK(cuMemRelease, entry->handle);
        entry->handle = 0;
    }
}

static void allocate(struct allocation *entry, unsigned *seed) {
    unsigned random = (unsigned)rand_r(seed);
    size_t pitch, rows = 1 + random % 7;
    entry->size = (size_t)(rand_r(seed) % 100000) + 1;
    entry->kind = random % 32 == 0 ? PHYSICAL : random % 32 == 1 ? MAPPED : (enum kind)(random / 32 % PHYSICAL);
    switch (entry->kind) {
    case PITCH:
        CHECK(cuMemAllocPitch_v2, &entry->address, &pitch, entry->size, rows, 4);
        entry->size = pitch * rows;
        break;
    case MANAGED:
        CHECK(cuMemAllocManaged, &entry->address, entry->size, 1);
        break;
    case ASYNC:
        CHECK(cuMemAllocAsync, &entry->address, entry->size, NULL);
        read_size(entry);
        break;
    case POOL:
        CHECK(cuMemAllocFromPoolAsync, &entry->address, entry->size, pool, NULL);
        read_size(entry);
        break;
    case PHYSICAL:
    case MAPPED:
        create(entry, random / 64);
        break;
    default:
        CHECK(cuMemAlloc_v2, &entry->address, entry->size);
    }
}

static void *run(void *data) {
    size_t number = (size_t)(uintptr_t)data;
    unsigned seed = (unsigned)number * 7919 + 1;
    struct allocation *mine = allocation[number];
    CHECK(cuCtxSetCurrent, context);
    for (int round = 1; round <= rounds; round++) {
        for (int i = 0; i < operations / rounds; i++, operations_done++) {
            struct allocation *entry = &mine[rand_r(&seed) % MAX_ALLOCATIONS];
            if (entry->size)
                release(entry, (unsigned)rand_r(&seed));
            else
                allocate(entry, &seed);
        }
        for (int i = 0; round == rounds && i < MAX_ALLOCATIONS; i++)
            if (mine[i].size)
                release(&mine[i], (unsigned)rand_r(&seed));
        pthread_barrier_wait(&barrier); /* main reads the records meanwhile */
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void report(int is_plain) {
    unsigned long long bytes = 0, driver = 0, charged = 0;
    size_t available, total, size;
    for (int i = 0; i < threads * MAX_ALLOCATIONS; i++) {
        struct allocation *entry = &allocation[i / MAX_ALLOCATIONS][i % MAX_ALLOCATIONS];
        int physical = entry->kind == PHYSICAL || entry->kind == MAPPED;
        if (!entry->size)
            continue;
        bytes += entry->size;
        if (physical)
            size = entry->size;
        else
            CHECK(cuPointerGetAttribute, &size, RANGE_SIZE, entry->address);
        driver += size;
        if (physical || (is_plain && entry->kind != MANAGED))
            charged += (entry->size + 511) / 512 * 512;
    }
    CHECK(cuMemGetInfo_v2, &available, &total);
    printf("{\"operations\": %lld, \"bytes\": %llu, \"driver\": %llu, \"charged\": %llu, \"used\": %zu}\n",
           (long long)operations_done, bytes, driver, charged, total - available);
    fflush(stdout);
}

int main(int argc, char **argv) {
    pthread_t started[MAX_THREADS];
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || argc != 5)
        return 2;
#define RESOLVE(name, parameters)                                                                                      \
    if (!(*(void **)&name = dlsym(library, #name)))                                                                    \
        return 3;
    FUNCTIONS(RESOLVE)
    threads = atoi(argv[1]);
    operations = atoi(argv[2]);
    rounds = atoi(argv[3]);
    CHECK(cuInit, 0);
    CHECK(cuDevicePrimaryCtxRetain, &context, 0);
    CHECK(cuCtxSetCurrent, context);
    CHECK(cuDeviceGetDefaultMemPool, &pool, 0);
    report(0); /* with nothing allocated */
    while (getchar() == 'r')
        report(0);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, run, (void *)(uintptr_t)i);
    for (int round = 1; round <= rounds; round++) {
        pthread_barrier_wait(&barrier);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        do
            report(strcmp(argv[4], "plain") == 0);
        while (getchar() == 'r');
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    return 0;
}
