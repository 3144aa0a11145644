/* Eight threads that allocate and free at random, by every way there is. Prints what they hold, then what is left when they
 * have freed it all, each after reading a line (but the first): {"bytes": …, "operations": …}. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 8
#define OPERATIONS 4000
#define HELD 64

typedef unsigned long long address_t;

static int (*cuInit)(unsigned), (*retain)(void **, int), (*set_current)(void *), (*cuMemAlloc)(address_t *, size_t),
    (*cuMemFree)(address_t), (*alloc_async)(address_t *, size_t, void *), (*free_async)(address_t, void *),
    (*alloc_managed)(address_t *, size_t, unsigned), (*synchronize)(void);

static void *context;
static _Atomic long long bytes, operations;
static pthread_barrier_t barrier;

static void check(int result, const char *what) {
    if (result) {
        fprintf(stderr, "%s: CUDA error %d\n", what, result);
        exit(1);
    }
}

struct held {
    address_t address;
    size_t size;
    int pooled;
};

static void release(struct held *held, unsigned random) {
    if (held->pooled && random % 2)
        check(free_async(held->address, NULL), "cuMemFreeAsync");
    else
        check(cuMemFree(held->address), "cuMemFree");
    bytes -= (long long)held->size;
    held->address = 0;
}

static void *run(void *data) {
    unsigned seed = (unsigned)(uintptr_t)data * 7919 + 1;
    struct held all[HELD] = {0};
    check(set_current(context), "cuCtxSetCurrent");
    for (int i = 0; i < OPERATIONS; i++) {
        struct held *held = &all[rand_r(&seed) % HELD];
        operations++;
        if (held->address) {
            release(held, (unsigned)rand_r(&seed));
            continue;
        }
        held->size = (size_t)(rand_r(&seed) % 100000) + 1;
        unsigned way = (unsigned)rand_r(&seed) % 8;
        held->pooled = way == 0;
        check(way == 0   ? alloc_async(&held->address, held->size, NULL)
              : way == 1 ? alloc_managed(&held->address, held->size, 1)
                         : cuMemAlloc(&held->address, held->size),
              "an allocation");
        bytes += (long long)held->size;
    }
    pthread_barrier_wait(&barrier); /* let main print and wait */
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < HELD; i++)
        if (all[i].address)
            release(&all[i], (unsigned)rand_r(&seed));
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        return 2;
    *(void **)&cuInit = dlsym(driver, "cuInit");
    *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    *(void **)&set_current = dlsym(driver, "cuCtxSetCurrent");
    *(void **)&cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    *(void **)&cuMemFree = dlsym(driver, "cuMemFree_v2");
    *(void **)&alloc_async = dlsym(driver, "cuMemAllocAsync");
    *(void **)&free_async = dlsym(driver, "cuMemFreeAsync");
    *(void **)&alloc_managed = dlsym(driver, "cuMemAllocManaged");
    *(void **)&synchronize = dlsym(driver, "cuCtxSynchronize");
    check(cuInit(0), "cuInit");
    check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(set_current(context), "cuCtxSetCurrent");
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i);
    pthread_barrier_wait(&barrier);
    check(synchronize(), "cuCtxSynchronize");
    printf("{\"bytes\": %lld, \"operations\": %lld}\n", (long long)bytes, (long long)operations);
    fflush(stdout);
    getchar();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    check(synchronize(), "cuCtxSynchronize");
    printf("{\"bytes\": %lld, \"operations\": %lld}\n", (long long)bytes, (long long)operations);
    fflush(stdout);
    getchar();
    return 0;
}
