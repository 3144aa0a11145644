/* Threads that allocate and free at random, by every way there is. Usage: ledger_stress THREADS OPERATIONS ROUNDS MODE, so
 * many operations per thread. After each round they all stand still; in the last one everything has been freed. Then, for
 * each "r" on standard input, one line: what this program holds by its own books, what the driver says of these very
 * addresses, what a driver should charge for them, and what it is told to be free. Anything else: on to the next round.
 * MODE is that of the shim: with "plain" the driver has device memory behind it all, else only behind physical memory. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELD 64
#define MOST_THREADS 64
#define GRANULE (2ull << 20)

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
    X(cuMemGetInfo_v2, (size_t *, size_t *))

#define DECLARE(name, parameters) static int(*name) parameters;
FUNCTIONS(DECLARE)

enum way { PLAIN, PITCH, MANAGED, ASYNC, POOL, PHYSICAL, MAPPED, WAYS };

struct held {
    address_t address, handle;
    size_t size; /* as the program counts: rows of pitched memory are rounded up */
    enum way way;
};

static struct held held[MOST_THREADS][HELD];
static void *context, *pool;
static int threads, operations, rounds;
static _Atomic long long done;
static pthread_barrier_t barrier;

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}
#define CHECK(name, ...) check(name(__VA_ARGS__), #name)

static void release(struct held *one, unsigned random) {
    if (one->way == PHYSICAL || one->way == MAPPED) {
        if (one->way == MAPPED) {
            CHECK(cuMemUnmap, one->address, GRANULE);
            CHECK(cuMemAddressFree, one->address, GRANULE);
        }
        if (one->handle)
            CHECK(cuMemRelease, one->handle);
    } else if ((one->way == ASYNC || one->way == POOL) && random % 2) {
        CHECK(cuMemFreeAsync, one->address, NULL);
    } else {
        CHECK(cuMemFree_v2, one->address);
    }
    memset(one, 0, sizeof *one);
}

static void create(struct held *one, unsigned random) {
    static const int on_device[16] = {1 /* pinned */, 0, 1 /* on a device */, 0};
    one->size = GRANULE;
    CHECK(cuMemCreate, &one->handle, GRANULE, on_device, 0);
    if (one->way == PHYSICAL)
        return;
    CHECK(cuMemAddressReserve, &one->address, GRANULE, 0, 0, 0);
    CHECK(cuMemMap, one->address, GRANULE, 0, one->handle, 0);
    if (random % 2) { /* the mapping keeps it */
        CHECK(cuMemRelease, one->handle);
        one->handle = 0;
    }
}

static void allocate(struct held *one, unsigned *seed) {
    unsigned random = (unsigned)rand_r(seed);
    size_t pitch, rows = 1 + random % 7;
    one->size = (size_t)(rand_r(seed) % 100000) + 1;
    one->way = random % 32 == 0 ? PHYSICAL : random % 32 == 1 ? MAPPED : (enum way)(random / 32 % PHYSICAL);
    switch (one->way) {
    case PITCH:
        CHECK(cuMemAllocPitch_v2, &one->address, &pitch, one->size, rows, 4);
        one->size = pitch * rows;
        break;
    case MANAGED:
        CHECK(cuMemAllocManaged, &one->address, one->size, 1);
        break;
    case ASYNC:
        CHECK(cuMemAllocAsync, &one->address, one->size, NULL);
        break;
    case POOL:
        CHECK(cuMemAllocFromPoolAsync, &one->address, one->size, pool, NULL);
        break;
    case PHYSICAL:
    case MAPPED:
        create(one, random / 64);
        break;
    default:
        CHECK(cuMemAlloc_v2, &one->address, one->size);
    }
}

static void *run(void *data) {
    size_t number = (size_t)(uintptr_t)data;
    unsigned seed = (unsigned)number * 7919 + 1;
    struct held *mine = held[number];
    CHECK(cuCtxSetCurrent, context);
    for (int round = 1; round <= rounds; round++) {
        for (int i = 0; i < operations / rounds; i++, done++) {
            struct held *one = &mine[rand_r(&seed) % HELD];
            if (one->size)
                release(one, (unsigned)rand_r(&seed));
            else
                allocate(one, &seed);
        }
        for (int i = 0; round == rounds && i < HELD; i++)
            if (mine[i].size)
                release(&mine[i], (unsigned)rand_r(&seed));
        pthread_barrier_wait(&barrier); /* let main read the books */
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void tell(int is_plain) {
    unsigned long long bytes = 0, driver = 0, charged = 0;
    size_t available, total, size;
    address_t base;
    for (int i = 0; i < threads * HELD; i++) {
        struct held *one = &held[i / HELD][i % HELD];
        int physical = one->way == PHYSICAL || one->way == MAPPED;
        if (!one->size)
            continue;
        bytes += one->size;
        if (physical)
            size = one->size;
        else
            CHECK(cuMemGetAddressRange_v2, &base, &size, one->address);
        driver += size;
        if (physical || (is_plain && one->way != MANAGED))
            charged += (one->size + 511) / 512 * 512;
    }
    CHECK(cuMemGetInfo_v2, &available, &total);
    printf("{\"operations\": %lld, \"bytes\": %llu, \"driver\": %llu, \"charged\": %llu, \"used\": %zu}\n",
           (long long)done, bytes, driver, charged, total - available);
    fflush(stdout);
}

int main(int argc, char **argv) {
    pthread_t started[MOST_THREADS];
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
    tell(0); /* with nothing allocated */
    while (getchar() == 'r')
        tell(0);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (int i = 0; i < threads; i++)
        pthread_create(&started[i], NULL, run, (void *)(uintptr_t)i);
    for (int round = 1; round <= rounds; round++) {
        pthread_barrier_wait(&barrier);
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        do
            tell(strcmp(argv[4], "plain") == 0);
        while (getchar() == 'r');
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    return 0;
}
