/* Declarations for the files that execute commands. The stream's worker calls all of them. */
#ifndef SIMCUDA_EXECUTE_H
#define SIMCUDA_EXECUTE_H

#include "machine/machine.h"
#include "memory/alloc.h"

#define SLACK_NS 50000
#define FAULT_CHUNK (16ull << 20) /* bytes moved before their device time is spent */

/* device_time.c: device time. A command begins at `now`, spends time, and may have begun late (negative: early). */
void device_time_enter(struct sim_stream *stream, uint64_t now);
void device_time_spend(struct sim_stream *stream, uint64_t ns, uint64_t slack_ns);
int64_t device_time_lateness(const struct sim_stream *stream, uint64_t now);
uint64_t device_time_scaled(double seconds); /* modelled seconds to nanoseconds */

/* copy_engines.c: a transfer continues where the stream's last one ended, if that was just now. `device`: the device
 * of its link. */
struct transfer {
    struct sim_stream *stream;
    int device;
    uint64_t at; /* its progress on the clock */
};
void transfer_begin(struct transfer *transfer, struct sim_stream *stream, int device, uint64_t now);
/* `bandwidth`: what it gets if no other transfer uses the link. */
void transfer_bytes(struct transfer *transfer, enum copy_direction direction, uint64_t bytes, double bandwidth);
void transfer_spend(struct transfer *transfer, uint64_t ns); /* without the link */

/* device_time.c: the stream takes no part in time slices until its next command. */
void execute_leave_device(struct sim_stream *stream);

/* execute.c: any command, by the functions below. */
void execute(struct sim_stream *stream, struct sim_command *command);

/* execute_launch.c, execute_copy.c */
void execute_launch(struct sim_stream *stream, struct sim_command *command);
void execute_copy(struct sim_stream *stream, struct sim_command *command);
void execute_set(struct sim_stream *stream, struct sim_command *command);
void execute_prefetch(struct sim_stream *stream, struct sim_command *command);

#endif
