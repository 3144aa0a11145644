/* The world file: creation, entry, and emptying the slots of the dead. */
#define _GNU_SOURCE
#include "world.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

uint64_t sim_now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ull + (uint64_t)ts.tv_nsec;
}

void sim_sleep_until(uint64_t deadline_ns) {
    struct timespec ts = {.tv_sec = (time_t)(deadline_ns / 1000000000ull),
                          .tv_nsec = (long)(deadline_ns % 1000000000ull)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

/* State letter and start time of a process. -1: there is none. A zombie has given its memory back: it counts
 * as gone. */
static int process_birth(int pid, uint64_t *start_time) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0)
        return -1;
    text[n] = 0;
    char *after = strrchr(text, ')'), state;
    unsigned long long start;
    if (!after || sscanf(after + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                         &state, &start) != 2)
        return -1;
    *start_time = start;
    return state == 'Z' || state == 'X' ? -1 : 0;
}

int world_is_gone(const struct world_process *process) {
    uint64_t start;
    if (kill(process->pid, 0) < 0 && errno == ESRCH)
        return 1;
    return process_birth(process->pid, &start) || start != process->start_time;
}

static void repair_device(struct world_device *device) {
    uint64_t used = 0;
    for (int i = 0; i < WORLD_SLOTS; i++)
        used += device->share[i].plain;
    for (uint32_t i = 0; i < device->range_end; i++)
        if (device->range[i].owner)
            used += device->range[i].resident;
    device->used = used + world_shared_bytes(device);
}

/* Returns whether the last holder died inside. */
static int lock_robust(pthread_mutex_t *lock) {
    if (pthread_mutex_lock(lock) != EOWNERDEAD)
        return 0;
    pthread_mutex_consistent(lock);
    return 1;
}

void world_lock_device(struct world *world, int device) {
    if (lock_robust(&world->device[device].lock))
        repair_device(&world->device[device]);
}

void world_unlock_device(struct world *world, int device) {
    pthread_mutex_unlock(&world->device[device].lock);
}

/* With the world locked. */
static void empty_slot(struct world *world, int slot) {
    uint64_t now = sim_now();
    for (int i = 0; i < world->params.devices; i++) {
        struct world_device *device = &world->device[i];
        world_lock_device(world, i);
        for (uint32_t r = 0; r < device->range_end; r++)
            if (device->range[r].owner == (uint32_t)slot + 1)
                device->range[r].owner = 0;
        world_shared_forget(device, slot);
        turns_forget(device, slot, now);
        memset(&device->share[slot], 0, sizeof device->share[slot]);
        repair_device(device);
        world_unlock_device(world, i);
    }
    world->process[slot].pid = 0;
}

void world_reap(struct world *world, int now) {
    static _Atomic uint64_t last;
    uint64_t time = sim_now(), before = atomic_load_explicit(&last, memory_order_relaxed);
    if (!now && time - before < 5000000)
        return;
    atomic_store_explicit(&last, time, memory_order_relaxed);
    lock_robust(&world->lock);
    for (int i = 0; i < WORLD_SLOTS; i++)
        if (world->process[i].pid && world_is_gone(&world->process[i]))
            empty_slot(world, i);
    pthread_mutex_unlock(&world->lock);
}

static void init_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* Nobody is in: the newcomer's parameters hold from now on. */
static void reset(struct world *world, const struct sim_params *params) {
    world->params = *params;
    for (int i = 0; i < params->devices; i++) {
        struct world_device *device = &world->device[i];
        world_lock_device(world, i);
        memset(device->range, 0, device->range_end * sizeof *device->range);
        memset(device->shared, 0, device->shared_end * sizeof *device->shared);
        memset(device->share, 0, sizeof device->share);
        device->used = device->populations = device->evicted = device->range_end = device->shared_end = 0;
        device->link_free[0] = device->link_free[1] = 0;
        device->turn = -1;
        device->turn_start = device->turn_end = device->turn_waiters = 0;
        world_unlock_device(world, i);
    }
}

/* Makes a complete file beside the path, then links it there: the path never names half a world. The space is
 * reserved: a full file system must show here, not as a SIGBUS in the program. */
static int create(const char *path, mode_t mode) {
    char temporary[SIM_PATH + 32];
    snprintf(temporary, sizeof temporary, "%s.%d.new", path, (int)getpid());
    unlink(temporary);
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    int result = -1;
    if (fchmod(fd, mode) == 0 && (errno = posix_fallocate(fd, 0, sizeof(struct world))) == 0) {
        struct world *world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (world != MAP_FAILED) {
            init_lock(&world->lock);
            for (int i = 0; i < SIM_MAX_DEVICES; i++) {
                init_lock(&world->device[i].lock);
                world->device[i].turn = -1;
            }
            world->bytes = sizeof *world;
            world->magic = WORLD_MAGIC;
            munmap(world, sizeof *world);
            result = link(temporary, path) == 0 || errno == EEXIST ? 0 : -1;
        }
    }
    int saved = errno;
    close(fd);
    unlink(temporary);
    errno = saved;
    return result;
}

static int open_world(const struct sim_params *params, char *problem, size_t size) {
    const char *path = params->world;
    mode_t mode = params->shared ? 0666 : 0600;
    for (int attempt = 0; attempt < 3; attempt++) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT && create(path, mode) == 0)
            continue;
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0) {
            snprintf(problem, size, "can't open %s: %s", path, strerror(errno));
        } else if (!S_ISREG(st.st_mode) || (st.st_uid != getuid() && !params->shared) || (st.st_mode & 0777) != mode) {
            snprintf(problem, size,
                     params->shared ? "%s is not a file for every user" : "%s is not a private file of this user",
                     path);
        } else if (st.st_size != (off_t)sizeof(struct world)) {
            snprintf(problem, size, "%s was made by another version of the simulated driver: remove it", path);
        } else {
            return fd;
        }
        if (fd >= 0)
            close(fd);
        return -1;
    }
    snprintf(problem, size, "can't create %s: %s", path, strerror(errno));
    return -1;
}

int world_enter(struct world **out, struct sim_params *params, char *problem, size_t size) {
    int fd = open_world(params, problem, size);
    if (fd < 0)
        return -1;
    struct world *world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (world == MAP_FAILED || world->magic != WORLD_MAGIC || world->bytes != sizeof *world) {
        snprintf(problem, size, "%s can't be used: remove it", params->world);
        return -1;
    }
    world_reap(world, 1);
    lock_robust(&world->lock);
    int slot = -1, others = 0;
    for (int i = 0; i < WORLD_SLOTS; i++)
        if (world->process[i].pid == (int32_t)getpid()) /* this process before it executed another program */
            empty_slot(world, i);
    for (int i = WORLD_SLOTS - 1; i >= 0; i--) {
        if (world->process[i].pid == 0)
            slot = i;
        else
            others++;
    }
    if (!others)
        reset(world, params);
    if (slot >= 0) {
        process_birth((int)getpid(), &world->process[slot].start_time);
        world->process[slot].pid = (int32_t)getpid();
        char path[SIM_PATH], log[SIM_PATH];
        memcpy(path, params->world, sizeof path);
        memcpy(log, params->log, sizeof log);
        *params = world->params;
        memcpy(params->world, path, sizeof path);
        memcpy(params->log, log, sizeof log); /* the log is each process's own affair */
        *out = world;
    } else {
        snprintf(problem, size, "%d processes use the simulated devices already", WORLD_SLOTS);
    }
    pthread_mutex_unlock(&world->lock);
    return slot;
}
