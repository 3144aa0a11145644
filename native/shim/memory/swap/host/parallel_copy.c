/* Copies between the program's host memory and staging buffers by several threads, because one thread copies slower than
 * the link, above all into pages that do not exist yet. A thread ends after some seconds without a copy. */
#define _GNU_SOURCE
#include "memory/swap/host/host.h"

#include <sched.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define MAX_WORKERS 3 /* beside the calling thread */
#define PART_BYTES (1ull << 20)
#define IDLE_SECONDS 5

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_parts = PTHREAD_COND_INITIALIZER, is_finished = PTHREAD_COND_INITIALIZER;
static struct {
    char *to;
    const char *from;
    uint64_t bytes, begun; /* `begun`: bytes that a thread copies or has copied */
    int copying;           /* threads */
} job;
static int workers;

/* The lock is held. Copy parts until all have begun. */
static void copy_parts(void) {
    while (job.begun < job.bytes) {
        uint64_t at = job.begun, bytes = min_u64(PART_BYTES, job.bytes - at);
        job.begun += bytes;
        job.copying++;
        pthread_mutex_unlock(&lock);
        memcpy(job.to + at, job.from + at, bytes);
        pthread_mutex_lock(&lock);
        job.copying--;
    }
}

static bool wait_for_parts(void) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += IDLE_SECONDS;
    while (job.begun == job.bytes)
        if (pthread_cond_timedwait(&has_parts, &lock, &end))
            return job.begun != job.bytes;
    return true;
}

static void *run(void *unused) {
    prctl(PR_SET_NAME, "gpushare-copy");
    pthread_mutex_lock(&lock);
    while (wait_for_parts()) {
        copy_parts();
        if (!job.copying)
            pthread_cond_signal(&is_finished);
    }
    workers--;
    pthread_mutex_unlock(&lock);
    return unused;
}

/* One processor is left to the calling thread. */
static int useful_workers(uint64_t bytes) {
    cpu_set_t processors;
    int most = sched_getaffinity(0, sizeof processors, &processors) ? 0 : CPU_COUNT(&processors) - 1;
    most = most < MAX_WORKERS ? most : MAX_WORKERS;
    return bytes / PART_BYTES < (uint64_t)most + 1 ? 0 : most;
}

void parallel_copy(void *to, const void *from, uint64_t bytes) {
    int useful = useful_workers(bytes);
    pthread_mutex_lock(&lock);
    while (workers < useful && start_helper_thread(run))
        workers++;
    job = (__typeof__(job)){.to = to, .from = from, .bytes = bytes};
    if (useful)
        pthread_cond_broadcast(&has_parts);
    copy_parts();
    while (job.copying)
        pthread_cond_wait(&is_finished, &lock);
    pthread_mutex_unlock(&lock);
}

void parallel_copy_after_fork(void) {
    pthread_mutex_init(&lock, NULL);
    pthread_cond_init(&has_parts, NULL);
    pthread_cond_init(&is_finished, NULL);
    job = (__typeof__(job)){0};
    workers = 0;
}
