/* Measuring loops for `jupyter gpushare bench`. The program is not linked with the driver and
 * finds the driver by `dlopen`. So the program runs bare or under the shim, on a GPU or on the simulated driver.
 *
 *   gpushare-bench gate [ROUNDS [THREADS]]    {"ns_per_launch": …, "ns_per_call": …, "rounds": …}
 *       Each is the minimum over many short batches; of several threads, with a stream each, the median.
 *       `ns_per_launch`: real launches into a queue with room; `ns_per_call`: launches without a function, which the
 *       driver refuses at once, so that little but the way in is timed. The difference of `ns_per_call` with and
 *       without the shim is the gate's overhead.
 *   gpushare-bench alloc [ROUNDS]     {"ns_per_pair": …, "managed_ns_per_pair": …, "stream_ns_per_pair": …}
 *       Allocations of 4 KiB and their releases, in one thread, 16 held at a time. Each figure is the minimum over
 *       many batches. `stream_ns_per_pair`: cuMemAllocAsync and cuMemFreeAsync in one stream.
 *   gpushare-bench handoff SECONDS    {"runs": [[first, last], …], "turns": [[began, closed, ended], …], "launches": …}
 *       Launches and waits for each, as fast as it can. A run is a row of launches without interruption: when its first
 *       and its last one were made, CLOCK_MONOTONIC nanoseconds. The end of the last run is the end of the program.
 *       Turns are those in the process's page, under the shim.
 *
 *   gpushare-bench drain SECONDS NANOSECONDS    {"launches": …, "begin": …, "end": …}
 *       Launches of so long each, as far ahead of the device as the driver lets it: a training loop. From the first
 *       launch to the end of the last one, CLOCK_MONOTONIC nanoseconds.
 *
 * Messages go to standard error; exit status 1 if it cannot measure.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../shim/base/page.h"

#define BATCH 256         /* launches: fewer than any driver's queue holds */
#define CALLS 4096        /* refused launches in a batch */
#define PAIRS 16          /* allocations in a batch: few enough for a simulated driver to keep the freed memory */
#define SMALL 4096        /* bytes of each */
#define PAUSE_NS 50000ull /* a launch that takes longer was held up */
#define MAX_RUNS 200000
#define SAMPLE_NS 3000000 /* between samples of the page; a turn and the time until the next one are longer */
#define MAX_THREADS 64

typedef int CUresult;

static CUresult (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *),
    (*cuModuleLoadData)(void **, const void *), (*cuModuleGetFunction)(void **, void *, const char *),
    (*cuCtxSynchronize)(void), (*cuStreamCreate)(void **, unsigned), (*cuStreamSynchronize)(void *),
    (*cuMemAlloc)(unsigned long long *, size_t), (*cuMemAllocManaged)(unsigned long long *, size_t, unsigned),
    (*cuMemFree)(unsigned long long), (*cuMemAllocAsync)(unsigned long long *, size_t, void *),
    (*cuMemFreeAsync)(unsigned long long, void *),
    (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);

static const struct {
    const char *name;
    void *function;
} symbols[] = {
    {"cuInit", &cuInit},
    {"cuDevicePrimaryCtxRetain", &cuDevicePrimaryCtxRetain},
    {"cuCtxSetCurrent", &cuCtxSetCurrent},
    {"cuModuleLoadData", &cuModuleLoadData},
    {"cuModuleGetFunction", &cuModuleGetFunction},
    {"cuCtxSynchronize", &cuCtxSynchronize},
    {"cuStreamCreate", &cuStreamCreate},
    {"cuStreamSynchronize", &cuStreamSynchronize},
    {"cuMemAlloc_v2", &cuMemAlloc},
    {"cuMemAllocManaged", &cuMemAllocManaged},
    {"cuMemAllocAsync", &cuMemAllocAsync},
    {"cuMemFreeAsync", &cuMemFreeAsync},
    {"cuMemFree_v2", &cuMemFree},
    {"cuLaunchKernel", &cuLaunchKernel},
};

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static void fail(const char *what, const char *why) {
    fprintf(stderr, "gpushare-bench: %s: %s\n", what, why);
    exit(1);
}

static void check(CUresult result, const char *what) {
    char text[32];
    if (!result)
        return;
    snprintf(text, sizeof text, "CUDA error %d", result);
    fail(what, text);
}

/* The built-in functions lie next to this program. */
static char *read_ptx(void) {
    static char path[4096], text[65536];
    const char *given = getenv("GPUSHARE_BENCH_PTX");
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 32);
    char *slash = length > 0 ? strrchr(path, '/') : NULL;
    if (slash)
        strcpy(slash + 1, "builtins.ptx");
    FILE *file = fopen(given ? given : path, "r");
    if (!file || fread(text, 1, sizeof text - 1, file) == 0)
        fail(given ? given : path, "cannot be read");
    fclose(file);
    return text;
}

static void *context, *spin;
static uint64_t launch_ns;

static inline CUresult launch(void *stream) {
    void *arguments[] = {&launch_ns};
    return cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static void start(void) {
    void *module, *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver)
        fail("libcuda.so.1", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *function = dlsym(driver, symbols[i].name);
        if (!function)
            fail(symbols[i].name, "the driver does not have it");
        memcpy(symbols[i].function, &function, sizeof function);
    }
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    check(cuModuleLoadData(&module, read_ptx()), "cuModuleLoadData");
    check(cuModuleGetFunction(&spin, module, "spin"), "cuModuleGetFunction");
    check(launch(NULL), "cuLaunchKernel"); /* waits for the turn, if there are turns */
    check(cuCtxSynchronize(), "cuCtxSynchronize");
}

struct measurement {
    pthread_t thread;
    void *stream;
    int rounds;
    uint64_t best_launch, best_call;
};

static void *measure(void *argument) {
    struct measurement *own = argument;
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    for (int round = 0; round < own->rounds; round++) {
        uint64_t begin = now();
        for (int i = 0; i < BATCH; i++)
            check(launch(own->stream), "cuLaunchKernel");
        uint64_t took = now() - begin;
        own->best_launch = took < own->best_launch ? took : own->best_launch;
        check(cuStreamSynchronize(own->stream), "cuStreamSynchronize");
        begin = now();
        for (int i = 0; i < CALLS; i++)
            cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, own->stream, NULL, NULL);
        took = now() - begin;
        own->best_call = took < own->best_call ? took : own->best_call;
    }
    return NULL;
}

static int ascending(const void *a, const void *b) {
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void gate(int rounds, int threads) {
    struct measurement found[MAX_THREADS];
    double launches[MAX_THREADS], calls[MAX_THREADS];
    for (int i = 0; i < threads; i++) {
        found[i] = (struct measurement){.rounds = rounds, .best_launch = UINT64_MAX, .best_call = UINT64_MAX};
        if (threads > 1)
            check(cuStreamCreate(&found[i].stream, 1), "cuStreamCreate");
    }
    for (int i = 1; i < threads; i++)
        if (pthread_create(&found[i].thread, NULL, measure, &found[i]))
            fail("pthread_create", "no thread could be started");
    measure(&found[0]);
    for (int i = 0; i < threads; i++) {
        if (i > 0)
            pthread_join(found[i].thread, NULL);
        launches[i] = (double)found[i].best_launch / BATCH;
        calls[i] = (double)found[i].best_call / CALLS;
    }
    qsort(launches, (size_t)threads, sizeof *launches, ascending);
    qsort(calls, (size_t)threads, sizeof *calls, ascending);
    printf("{\"ns_per_launch\": %.3f, \"ns_per_call\": %.3f, \"rounds\": %d}\n", launches[threads / 2],
           calls[threads / 2], rounds);
}

static void drain(double seconds) {
    uint64_t launches = 0, begin = now(), end = begin + (uint64_t)(seconds * 1e9);
    for (; now() < end; launches++)
        check(launch(NULL), "cuLaunchKernel");
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    printf("{\"launches\": %llu, \"begin\": %llu, \"end\": %llu}\n", (unsigned long long)launches,
           (unsigned long long)begin, (unsigned long long)now());
}

enum pair { DEVICE, MANAGED, STREAM, KINDS };

static int allocate(enum pair kind, unsigned long long *address, void *stream) {
    return kind == MANAGED  ? cuMemAllocManaged(address, SMALL, 1)
           : kind == STREAM ? cuMemAllocAsync(address, SMALL, stream)
                            : cuMemAlloc(address, SMALL);
}

static uint64_t pairs(enum pair kind, void *stream) {
    unsigned long long held[PAIRS];
    uint64_t begin = now();
    for (int i = 0; i < PAIRS; i++)
        check(allocate(kind, &held[i], stream), "an allocation");
    for (int i = 0; i < PAIRS; i++)
        check(kind == STREAM ? cuMemFreeAsync(held[i], stream) : cuMemFree(held[i]), "a release");
    return now() - begin;
}

static void alloc(int rounds) {
    uint64_t best[KINDS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    void *stream;
    check(cuStreamCreate(&stream, 1), "cuStreamCreate");
    for (int round = 0; round < KINDS * rounds; round++) {
        uint64_t took = pairs((enum pair)(round % KINDS), stream);
        best[round % KINDS] = took < best[round % KINDS] ? took : best[round % KINDS];
        if (round % KINDS == STREAM) /* the next batch finds a device without work, as the first one did */
            check(cuStreamSynchronize(stream), "cuStreamSynchronize");
    }
    printf("{\"ns_per_pair\": %.1f, \"managed_ns_per_pair\": %.1f, \"stream_ns_per_pair\": %.1f, \"rounds\": %d}\n",
           (double)best[DEVICE] / PAIRS, (double)best[MANAGED] / PAIRS, (double)best[STREAM] / PAIRS, rounds);
}

/* Return the page of this process, where the shim has mapped it; NULL without a shim. */
static const struct gpushare_page *find_page(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long found = 0;
    while (maps && !found && fgets(line, sizeof line, maps))
        if (strstr(line, "/memfd:gpushare-page"))
            found = strtoul(line, NULL, 16);
    if (maps)
        fclose(maps);
    return (const struct gpushare_page *)found;
}

static struct {
    const volatile struct gpushare_turn *page;
    uint64_t (*turns)[3];
    int count;
    volatile int over;
} watch;

/* Note each turn that has ended, by sampling the page. */
static void *watch_turns(void *unused) {
    struct timespec pause = {0, SAMPLE_NS};
    uint64_t last = 0;
    while (!watch.over && watch.count < MAX_RUNS) {
        uint64_t began = watch.page->entered_ns, closed = watch.page->closed_ns, ended = watch.page->left_ns;
        if (ended && began != last && began == watch.page->entered_ns) {
            memcpy(watch.turns[watch.count++], (uint64_t[]){began, closed, ended}, sizeof *watch.turns);
            last = began;
        }
        nanosleep(&pause, NULL);
    }
    return unused;
}

static void print_rows(const char *name, const uint64_t *row, int columns, int rows) {
    printf("\"%s\": [", name);
    for (int i = 0; i < columns * rows; i++)
        printf("%s%s%llu%s", i && i % columns == 0 ? ", " : "", i % columns ? ", " : "[", (unsigned long long)row[i],
               i % columns == columns - 1 ? "]" : "");
    printf("]");
}

static void handoff(double seconds) {
    pthread_t watcher;
    const struct gpushare_page *page = find_page();
    uint64_t (*runs)[2] = calloc(MAX_RUNS, sizeof *runs), launches = 0;
    if (!runs)
        fail("handoff", "out of memory");
    watch.page = page ? &page->report.turn : NULL;
    watch.turns = calloc(MAX_RUNS, sizeof *watch.turns);
    if (page && (!watch.turns || pthread_create(&watcher, NULL, watch_turns, NULL)))
        fail("handoff", "no thread could be started");
    uint64_t end = now() + (uint64_t)(seconds * 1e9);
    int count = 0;
    for (uint64_t before = now(); before < end && count < MAX_RUNS; launches++) {
        check(launch(NULL), "cuLaunchKernel");
        uint64_t after = now();
        if (count == 0 || after - before > PAUSE_NS)
            runs[count++][0] = after;
        runs[count - 1][1] = after;
        check(cuCtxSynchronize(), "cuCtxSynchronize");
        before = now();
    }
    watch.over = 1;
    if (page)
        pthread_join(watcher, NULL);
    printf("{\"launches\": %llu, ", (unsigned long long)launches);
    print_rows("runs", &runs[0][0], 2, count);
    printf(", ");
    print_rows("turns", watch.turns ? &watch.turns[0][0] : NULL, 3, watch.count);
    printf("}\n");
    free(watch.turns);
    free(runs);
}

static int from_1(const char *text, int max, int otherwise) {
    int value = text ? atoi(text) : 0;
    return value > max ? max : value > 0 ? value : otherwise;
}

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "gate") == 0) {
        start();
        gate(from_1(argv[2], INT32_MAX, 1000), from_1(argc > 3 ? argv[3] : NULL, MAX_THREADS, 1));
    } else if (argc >= 2 && strcmp(argv[1], "alloc") == 0) {
        start();
        alloc(from_1(argv[2], INT32_MAX / 2, 1000));
    } else if (argc >= 3 && strcmp(argv[1], "handoff") == 0 && atof(argv[2]) > 0) {
        start();
        handoff(atof(argv[2]));
    } else if (argc >= 4 && strcmp(argv[1], "drain") == 0 && atof(argv[2]) > 0) {
        start();
        launch_ns = strtoull(argv[3], NULL, 10);
        drain(atof(argv[2]));
    } else {
        fail("usage", "gpushare-bench gate [ROUNDS [THREADS]] | alloc [ROUNDS] | handoff SECONDS | drain SECONDS NS");
    }
    return 0;
}
