/* Processes of the machine: whether they have ended, and their slots. */
#define _GNU_SOURCE
#include "machine/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int machine_process_birth(int pid, uint64_t *start_time) {
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

int machine_is_gone(const struct machine_process *process) {
    uint64_t start;
    if (kill(process->pid, 0) < 0 && errno == ESRCH)
        return 1;
    return machine_process_birth(process->pid, &start) || start != process->start_time;
}

int machine_find_process(const struct machine *machine, int pid, struct machine_process *process) {
    for (int i = 0; i < MACHINE_SLOTS; i++) {
        *process = machine->process[i];
        if (process->pid == pid && !machine_is_gone(process))
            return i;
    }
    return -1;
}
