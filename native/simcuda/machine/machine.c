/* The machine file: creation, entry, and emptying the slots of processes that have ended. */
#define _GNU_SOURCE
#include "base/cuda_abi.h"
#include "base/waiting.h"
#include "machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The machine is locked. */
static void empty_slot(struct machine *machine, int slot) {
    uint64_t now = sim_now();
    for (int i = 0; i < machine->params.devices; i++) {
        struct machine_device *device = &machine->device[i];
        machine_lock_device(machine, i);
        for (uint32_t r = 0; r < device->range_end; r++)
            if (device->range[r].owner == (uint32_t)slot + 1)
                device->range[r].owner = 0;
        machine_shared_remove(device, slot);
        slices_remove(device, slot, now);
        memset(&device->share[slot], 0, sizeof device->share[slot]);
        machine_repair_device(device);
        machine_unlock_device(machine, i);
    }
    machine->checkpoint[slot].state = CU_PROCESS_RUNNING;
    machine->checkpoint[slot].thread = 0;
    machine->process[slot].pid = 0;
}

void machine_reap(struct machine *machine, int now) {
    static _Atomic uint64_t last;
    uint64_t time = sim_now(), before = atomic_load_explicit(&last, memory_order_relaxed);
    if (!now && time - before < 5000000)
        return;
    atomic_store_explicit(&last, time, memory_order_relaxed);
    machine_lock_robust(&machine->lock);
    for (int i = 0; i < MACHINE_SLOTS; i++)
        if (machine->process[i].pid && machine_is_gone(&machine->process[i]))
            empty_slot(machine, i);
    pthread_mutex_unlock(&machine->lock);
}

static void init_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

/* No process is in: the parameters of the entering process hold from now on. */
static void reset(struct machine *machine, const struct sim_params *params) {
    machine->params = *params;
    for (int i = 0; i < params->devices; i++) {
        struct machine_device *device = &machine->device[i];
        machine_lock_device(machine, i);
        memset(device->range, 0, device->range_end * sizeof *device->range);
        memset(device->shared, 0, device->shared_end * sizeof *device->shared);
        memset(device->share, 0, sizeof device->share);
        device->used = device->populations = device->evicted = device->range_end = device->shared_end = 0;
        device->link_free[0] = device->link_free[1] = 0;
        device->holder = -1;
        device->slice_start = device->slice_end = device->slice_waiters = 0;
        machine_unlock_device(machine, i);
    }
}

/* Make a complete file under another name, then link it to the path, so that the path never names half a machine.
 * The space is reserved, because a full file system must show here and not as a SIGBUS in the program. */
static int create(const char *path, mode_t mode) {
    char temporary[SIM_PATH + 32];
    snprintf(temporary, sizeof temporary, "%s.%d.new", path, (int)getpid());
    unlink(temporary);
    int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    int result = -1;
    if (fchmod(fd, mode) == 0 && (errno = posix_fallocate(fd, 0, sizeof(struct machine))) == 0) {
        struct machine *machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (machine != MAP_FAILED) {
            init_lock(&machine->lock);
            for (int i = 0; i < MACHINE_SLOTS; i++)
                init_lock(&machine->checkpoint[i].lock);
            for (int i = 0; i < SIM_MAX_DEVICES; i++) {
                init_lock(&machine->device[i].lock);
                machine->device[i].holder = -1;
            }
            machine->bytes = sizeof *machine;
            machine->magic = MACHINE_MAGIC;
            munmap(machine, sizeof *machine);
            result = link(temporary, path) == 0 || errno == EEXIST ? 0 : -1;
        }
    }
    int saved = errno;
    close(fd);
    unlink(temporary);
    errno = saved;
    return result;
}

static int open_machine(const struct sim_params *params, char *problem, size_t size) {
    const char *path = params->machine;
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
        } else if (st.st_size != (off_t)sizeof(struct machine)) {
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

int machine_enter(struct machine **out, struct sim_params *params, char *problem, size_t size) {
    int fd = open_machine(params, problem, size);
    if (fd < 0)
        return -1;
    struct machine *machine = mmap(NULL, sizeof *machine, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (machine == MAP_FAILED || machine->magic != MACHINE_MAGIC || machine->bytes != sizeof *machine) {
        snprintf(problem, size, "%s can't be used: remove it", params->machine);
        return -1;
    }
    machine_reap(machine, 1);
    machine_lock_robust(&machine->lock);
    int slot = -1, others = 0;
    for (int i = 0; i < MACHINE_SLOTS; i++)
        if (machine->process[i].pid == (int32_t)getpid()) /* this process, before it executed another program */
            empty_slot(machine, i);
    for (int i = MACHINE_SLOTS - 1; i >= 0; i--) {
        if (machine->process[i].pid == 0)
            slot = i;
        else
            others++;
    }
    if (!others)
        reset(machine, params);
    if (slot >= 0) {
        machine_process_birth((int)getpid(), &machine->process[slot].start_time);
        machine->process[slot].pid = (int32_t)getpid();
        char path[SIM_PATH], log[SIM_PATH];
        memcpy(path, params->machine, sizeof path);
        memcpy(log, params->log, sizeof log);
        *params = machine->params;
        memcpy(params->machine, path, sizeof path);
        memcpy(params->log, log, sizeof log); /* each process has its own log */
        *out = machine;
    } else {
        snprintf(problem, size, "%d processes use the simulated devices already", MACHINE_SLOTS);
    }
    pthread_mutex_unlock(&machine->lock);
    return slot;
}

struct machine *machine_attach(const char *path, int is_writable) {
    struct stat st;
    int fd = open(path, (is_writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return NULL;
    struct machine *machine = MAP_FAILED;
    if (fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof *machine)
        machine = mmap(NULL, sizeof *machine, PROT_READ | (is_writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    close(fd);
    if (machine != MAP_FAILED && machine->magic == MACHINE_MAGIC)
        return machine;
    if (machine != MAP_FAILED)
        machine_detach(machine);
    return NULL;
}

void machine_detach(const struct machine *machine) {
    munmap((void *)machine, sizeof *machine);
}
