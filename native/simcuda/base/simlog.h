/* The log of executions on the device: one file per process, readable while it is written and after a
 * SIGKILL. */
#ifndef SIMCUDA_SIMLOG_H
#define SIMCUDA_SIMLOG_H

#include <stddef.h>
#include <stdint.h>

enum sim_log_kind {
    LOG_LAUNCH = 1,
    LOG_HOST_TO_DEVICE,
    LOG_DEVICE_TO_HOST,
    LOG_DEVICE_TO_DEVICE,
    LOG_SET,
    LOG_PREFETCH_TO_DEVICE,
    LOG_PREFETCH_TO_HOST,
};

/* 48 bytes, little endian. Times are CLOCK_MONOTONIC ns. A record whose begin_ns is 0 was never written. */
struct sim_log_record {
    uint64_t begin_ns, end_ns;
    uint32_t pid, kind, device, stream;
    uint64_t bytes, sequence;
};

/* Opens DIR/PID.simlog. 0, or -1 with one line in `problem`. */
int simlog_open(const char *directory, char *problem, size_t problem_size);
void simlog_write(enum sim_log_kind kind, uint64_t begin_ns, uint64_t end_ns, int device, uint64_t stream,
                  uint64_t bytes);

#endif
