/* The log of executions: a file of records, of which one window is mapped at a time. */
#define _GNU_SOURCE
#include "base/simlog.h"
#include "base/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RECORDS 16384 /* mapped at a time */
#define WINDOW (RECORDS * sizeof(struct sim_log_record))

_Static_assert(sizeof(struct sim_log_record) == 48, "the record's layout is documented");
_Static_assert(WINDOW % 4096 == 0, "windows follow each other in the file");

static struct {
    pthread_mutex_t lock;
    int fd;
    struct sim_log_record *window;
    uint64_t sequence;
} execution_log = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

static int next_window(void) {
    off_t start = (off_t)(execution_log.sequence * sizeof(struct sim_log_record));
    if (execution_log.window)
        munmap(execution_log.window, WINDOW);
    execution_log.window = NULL;
    if ((errno = posix_fallocate(execution_log.fd, start, WINDOW))) /* a full disk must not become a SIGBUS */
        return -1;
    void *window = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, execution_log.fd, start);
    if (window == MAP_FAILED)
        return -1;
    execution_log.window = window;
    return 0;
}

int simlog_open(const char *directory, char *problem, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%d.simlog", directory, (int)getpid());
    execution_log.fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (execution_log.fd < 0 || next_window()) {
        snprintf(problem, size, "can't write %s: %s", path, strerror(errno));
        if (execution_log.fd >= 0)
            close(execution_log.fd);
        execution_log.fd = -1;
        return -1;
    }
    return 0;
}

void simlog_write(enum sim_log_kind kind, uint64_t begin_ns, uint64_t end_ns, int device, uint64_t stream,
                  uint64_t bytes) {
    if (execution_log.fd < 0)
        return;
    pthread_mutex_lock(&execution_log.lock);
    if (execution_log.window) {
        struct sim_log_record *record = &execution_log.window[execution_log.sequence % RECORDS];
        record->end_ns = end_ns;
        record->pid = (uint32_t)getpid();
        record->kind = kind;
        record->device = (uint32_t)device_place(device);
        record->stream = (uint32_t)stream;
        record->bytes = bytes;
        record->sequence = execution_log.sequence++;
        __atomic_store_n(&record->begin_ns, begin_ns, __ATOMIC_RELEASE); /* last: it makes the record valid */
        if (execution_log.sequence % RECORDS == 0)
            next_window();
    }
    pthread_mutex_unlock(&execution_log.lock);
}
